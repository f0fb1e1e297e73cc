# SPDX-License-Identifier: Apache-2.0
"""What trains on the device must give the CPU's numbers bit for bit, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import simcuda

pytestmark = pytest.mark.engine

Model = Callable[[Any, str], list[Any]]


def _fit(
    torch: Any, device: str, model: Any, loss: Any, optimizer: Any, steps: int = 3
) -> list[Any]:
    """Losses and everything that the model is after the steps, on the CPU."""
    model = model.to(device)
    optimizer = optimizer(model.parameters())
    torch.manual_seed(7)
    results: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        results.append(value.detach().cpu())
    return results + [t.detach().cpu() for t in model.state_dict().values()]


def cnn(torch: Any, device: str) -> list[Any]:
    nn = torch.nn
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.GroupNorm(4, 16), nn.GELU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)

    def loss(model: Any) -> Any:
        x = torch.randn(8, 3, 16, 16, generator=generator).to(device, non_blocking=True)
        y = torch.randint(0, 10, (8,), generator=generator).to(device)
        return nn.functional.cross_entropy(model(x), y)

    return _fit(torch, device, model, loss, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))


def transformer(torch: Any, device: str) -> list[Any]:
    nn = torch.nn
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(50, 32), "layer": layer, "head": nn.Linear(32, 50)}
    )
    words = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1)).to(device)

    def loss(model: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        hidden = checkpoint(model["layer"], model["embed"](words), use_reentrant=False)
        return nn.functional.cross_entropy(model["head"](hidden).flatten(0, 1), words.flatten())

    return _fit(torch, device, model, loss, lambda p: torch.optim.AdamW(p, 1e-3))


def fused_adam(torch: Any, device: str) -> list[Any]:
    torch.manual_seed(0)
    x = torch.randn(16, 8).to(device)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Tanh())
    return _fit(
        torch,
        device,
        model,
        lambda m: m(x).pow(2).sum(),
        lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    )


def _recurrent(kind: str, **options: Any) -> Model:
    def run(torch: Any, device: str) -> list[Any]:
        torch.manual_seed(0)
        x = torch.randn(5, 3, 8).to(device)
        model = getattr(torch.nn, kind)(8, 16, 2, dropout=0.2, **options)
        # The CPU's other way, oneDNN's fused layer, rounds differently.
        with torch.backends.mkldnn.flags(enabled=False):
            return _fit(torch, device, model, lambda m: m(x)[0].pow(2).sum(), torch.optim.Adam)

    run.__name__ = kind.lower() + "".join(f"-{k}" for k in options)
    return run


MODELS = [
    cnn, transformer, fused_adam,
    _recurrent("LSTM"), _recurrent("LSTM", bidirectional=True), _recurrent("LSTM", proj_size=8),
    _recurrent("GRU"), _recurrent("RNN"),
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_training_equals_the_cpu(torch: Any, mode: str, model: Model) -> None:
    expected, got = model(torch, "cpu"), model(torch, "cuda")
    assert all(map(torch.equal, expected, got))
    assert simcuda.device.counters()["refused_launches"] == 0


def amp(torch: Any, device: str) -> Any:
    model = torch.nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device)
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(torch.randn(4, 16).to(device)).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.weight.detach()


def double_backward(torch: Any, device: str) -> Any:
    x = torch.randn(4, 4).to(device).requires_grad_()
    (grad,) = torch.autograd.grad(x.sin().pow(3).sum(), x, create_graph=True)
    grad.pow(2).sum().backward()
    return x.grad


def saved_on_cpu(torch: Any, device: str) -> Any:
    weight = torch.randn(8, 8).to(device).requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
        loss = (weight @ weight).relu().sum()
    loss.backward()
    return weight.grad


def indexing(torch: Any, device: str) -> Any:
    x = torch.arange(60.0).view(6, 10).to(device)
    x[2:4, ::2] = -1
    mask = x > 20
    x[mask] *= 2
    x[torch.tensor([0, 1]), torch.tensor([2, 3])] = 5  # indices on the CPU
    values, order = x.sort(1, descending=True)
    parts = (
        values,
        order,
        x[mask],
        torch.nonzero(mask),
        x.cumsum(0),
        x[:, [1, 3]].t(),
        *torch.unique(x, return_counts=True),
    )
    return torch.cat([p.flatten().double() for p in parts])


def out_and_resize(torch: Any, device: str) -> Any:
    x = torch.randn(4, 5).to(device)
    fresh, transposed = torch.empty(0, device=device), torch.empty(5, 4, device=device).t()
    torch.add(x, x, out=fresh)
    torch.mul(x, 2, out=transposed)
    low, at = torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
    torch.min(x, 1, out=(low, at))
    x.resize_(2, 2)
    return torch.cat([t.flatten() for t in (fresh, transposed, low, at.float(), x)])


def copies(torch: Any, device: str) -> Any:
    x = torch.randn(8, 8).to(device)
    host, view = torch.empty(8, 8).t(), torch.empty(8, 8, device=device).t()
    host.copy_(x)
    view.copy_(torch.randn(8, 8).t())
    half = x.t()[::2].half().float().repeat(2, 1)
    return host + view.cpu() + half.cpu() + x.to(torch.int32).double().cpu()


def complex_numbers(torch: Any, device: str) -> Any:
    x = torch.randn(4, 4, dtype=torch.complex64).to(device)
    real = torch.view_as_real((x.conj() @ x).resolve_conj())
    return real + torch.view_as_real(x.mH.resolve_conj()) + x.imag.neg()[..., None]


def linear_algebra(torch: Any, device: str) -> Any:
    x = torch.randn(5, 5).to(device)
    a = x @ x.t() + torch.eye(5, device=device)
    parts = (
        torch.linalg.solve(a, x),
        torch.linalg.cholesky(a),
        torch.linalg.svdvals(a),
        torch.linalg.qr(a)[1],
        torch.linalg.inv(a),
        torch.det(a)[None],
        torch.fft.rfft(x).real,
    )
    return torch.cat([p.flatten() for p in parts])


def foreach(torch: Any, device: str) -> Any:
    tensors = [torch.randn(3).to(device) for _ in range(3)]
    torch._foreach_mul_(tensors, 2)
    torch._foreach_addcmul_(tensors, tensors, tensors, 0.5)
    torch._foreach_addcdiv_(tensors, tensors, tensors, torch.tensor([1.0, 2.0, 3.0]))  # CPU
    return torch.stack([*torch._foreach_norm(tensors), *[t.sum() for t in tensors]])


def sparse(torch: Any, device: str) -> Any:
    at = torch.tensor([[0, 1, 1], [1, 0, 0]])
    coo = torch.sparse_coo_tensor(at, torch.tensor([1.0, 2.0, 3.0]), (2, 2)).to(device)
    csr = coo.coalesce().to_sparse_csr()
    dense = torch.randn(2, 2).to(device)
    return coo @ dense + csr @ dense + (coo + coo).to_dense() + coo.mul(2).coalesce().to_dense()


def attention(torch: Any, device: str) -> Any:
    q = torch.randn(2, 4, 16, 8).to(device).requires_grad_()
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    return q.grad


def transforms(torch: Any, device: str) -> Any:
    weight = torch.randn(4, 3).to(device)
    return torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(weight)


def channels_last(torch: Any, device: str) -> Any:
    model = torch.nn.ConvTranspose2d(4, 4, 3, groups=2).to(device)
    model = model.to(memory_format=torch.channels_last)
    model(torch.randn(2, 4, 8, 8).to(device)).sum().backward()
    return model.weight.grad


def embedding(torch: Any, device: str) -> Any:
    table = torch.nn.Embedding(10, 4, sparse=True).to(device)
    bag = torch.nn.EmbeddingBag(10, 4).to(device)
    at = torch.tensor([[1, 2, 2], [4, 1, 0]]).to(device)
    (table(at).sum() + bag(at).pow(2).sum()).backward()
    return table.weight.grad.to_dense() + bag.weight.grad


def saved_and_loaded(torch: Any, device: str) -> Any:
    import io

    file = io.BytesIO()
    torch.save({"x": torch.randn(3).to(device)}, file)
    file.seek(0)
    return torch.load(file)["x"]


def pinned_loader(torch: Any, device: str) -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(40.0))
    loader = torch.utils.data.DataLoader(data, 8, pin_memory=device == "cuda")
    return torch.stack([batch[0].to(device, non_blocking=True).sum() for batch in loader])


FEATURES = [
    amp, double_backward, saved_on_cpu, indexing, out_and_resize, copies, complex_numbers,
    linear_algebra, foreach, sparse, attention, transforms, channels_last, embedding,
    saved_and_loaded, pinned_loader,
]  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.__name__)
def test_feature_equals_the_cpu(torch: Any, mode: str, feature: Callable[[Any, str], Any]) -> None:
    torch.manual_seed(0)
    expected = feature(torch, "cpu")
    torch.manual_seed(0)
    got = feature(torch, "cuda").cpu()
    assert got.dtype == expected.dtype
    assert torch.equal(expected, got)


def test_printing(torch: Any) -> None:
    assert repr(torch.ones(2).cuda()) == "tensor([1., 1.], device='cuda:0')"


def test_two_devices(torch: Any, mode: str) -> None:
    x = torch.arange(1000.0)
    first, second = x.to("cuda:0"), x.to("cuda:1")
    assert torch.equal((first.to("cuda:1") + second).cpu(), x * 2)
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        first + second
    with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
        first.mm(x)
