# SPDX-License-Identifier: Apache-2.0
"""What is run on a finished wheel: suites, the demonstration, the benchmark."""
