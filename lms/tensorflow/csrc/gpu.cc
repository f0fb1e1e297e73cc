// SPDX-License-Identifier: Apache-2.0
#if GOOGLE_CUDA
#endif
