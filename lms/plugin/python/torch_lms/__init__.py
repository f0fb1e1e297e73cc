# SPDX-License-Identifier: Apache-2.0
r"""Large Model Support for an unpatched PyTorch::

    import torch, torch_lms
    torch_lms.enable()

Importing it gives torch.cuda what a PyTorch with the patch series has: ``torch.cuda.lms`` (this is
the same module), the names that scripts for IBM's Large Model Support use, and its numbers in
``torch.cuda.memory_stats()`` and ``memory_summary()``. Nothing else changes before the first
``enable``. With ``PYTORCH_LMS`` set in the environment not even the import is needed.

Beside a patched PyTorch this is ``torch.cuda.lms`` itself.
"""

from __future__ import annotations

import os

import torch

if hasattr(torch.cuda, "lms"):
    lms = torch.cuda.lms
else:
    from torch_lms import _versions, lms
    from torch_lms._into_torch import install

    _versions.check(
        torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi(), os.environ
    )
    lms.library.path = _versions.library
    install(lms)

__all__ = list(lms.__all__)
globals().update({name: getattr(lms, name) for name in __all__})
