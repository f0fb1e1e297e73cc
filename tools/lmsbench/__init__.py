# SPDX-License-Identifier: Apache-2.0
"""Benchmark of Large Model Support against doing without, `save_on_cpu` and checkpointing.

Needs torch and nothing else beside the standard library, so that it runs wherever torch does;
plots need matplotlib, and `dry`, which starts the others on the dry device, scipy.
"""
