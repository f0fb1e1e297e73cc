# SPDX-License-Identifier: Apache-2.0
"""The Python API: IBM's names, limits, exclusion, the environment switch, and wrong use."""

import json

import pytest

POOL = 256
IBM = [
    "num_allocs",
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc_size",
    "bytes_limit",
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
    "bytes_inactive",
    "bytes_active",
    "peak_bytes_active",
    "bytes_reclaimed",
    "current_bytes_reclaimed",
    "peak_bytes_reclaimed",
    "num_single_reclaims",
    "num_full_reclaims",
]
USE = "x = tf.random.uniform((1024, 1024)); y = tf.matmul(x, x); "


def values(programs, code, pool=POOL, **options):
    """Run a program that prints one JSON value."""
    code = "import json, tensorflow as tf\n" + code
    return json.loads(programs.run(code, pool=pool, **options).splitlines()[-1])


def error_of(programs, code, pool=POOL, **options):
    """The last line of the traceback."""
    said = programs.run("import tensorflow as tf\n" + code, pool=pool, fails=True, **options)
    return [line for line in said.splitlines() if line and not line.startswith(" ")][-1]


def test_switch(programs):
    code = """
say = [tf.config.experimental.get_lms_enabled()]
tf.config.experimental.set_lms_enabled(True)
say.append(tf.config.experimental.get_lms_enabled())
tf.config.experimental.set_lms_enabled(False)
say.append(tf.config.experimental.get_lms_enabled())
v1 = tf.compat.v1.config.experimental
print(json.dumps(say + [v1.set_lms_enabled is tf.config.experimental.set_lms_enabled]))
"""
    assert values(programs, code) == [False, True, False, True]


def test_session_config(programs):
    code = """
v1 = tf.compat.v1
config = v1.ConfigProto(allow_soft_placement=True)
config.gpu_options.experimental.lms_enabled = True
again = v1.ConfigProto.FromString(config.SerializeToString())
before = tf.config.experimental.get_lms_enabled()
with v1.Session(graph=tf.Graph(), config=config) as session:
    with session.graph.as_default():
        session.run(v1.random_uniform((4, 4)))
print(json.dumps([again.gpu_options.experimental.lms_enabled, before,
                  tf.config.experimental.get_lms_enabled()]))
"""
    assert values(programs, code) == [True, False, True]


def test_official_proto_keeps_the_field(programs):
    """A configuration written by a patched process passes through an official one."""
    write = """
config = tf.compat.v1.ConfigProto()
config.gpu_options.experimental.lms_enabled = True
print(json.dumps(config.SerializeToString().hex()))
"""
    written = values(programs, write)
    through = values(
        programs,
        "c = tf.compat.v1.ConfigProto.FromString(bytes.fromhex(%r))\n"
        "print(json.dumps(c.SerializeToString().hex()))" % written,
        wheel="stock",
    )
    read = values(
        programs,
        "c = tf.compat.v1.ConfigProto.FromString(bytes.fromhex(%r))\n"
        "print(json.dumps(c.gpu_options.experimental.lms_enabled))" % through,
    )
    assert read is True


def test_environment_switch(programs):
    code = (
        "o = tf.config.experimental.get_lms_options()\n"
        "print(json.dumps([tf.config.experimental.get_lms_enabled(), o]))"
    )
    on, options = values(programs, code, env={"TF_LMS": "device_limit=64MiB,host_limit=1GiB"})
    assert on and options["device_limit"] == 64 << 20 and options["host_limit"] == 1 << 30
    assert values(programs, code, env={"TF_LMS": "0"})[0] is False


def test_ibm_statistics(programs):
    code = (
        "tf.config.experimental.set_lms_enabled(True)\n"
        + USE
        + ("print(json.dumps({n: getattr(tf.experimental, 'get_' + n)(0) for n in %r}))" % (IBM,))
    )
    found = values(programs, code)
    assert found["bytes_limit"] == POOL << 20
    assert found["num_allocs"] > 0 and found["largest_alloc_size"] >= 4 << 20
    assert 8 << 20 <= found["bytes_in_use"] <= found["peak_bytes_in_use"] <= found["bytes_limit"]
    assert found["bytes_reclaimed"] == found["num_full_reclaims"] == 0


def test_statistics_of_a_full_device(programs, eager_moves):
    code = """
tf.config.experimental.set_lms_enabled(True)
kept = [tf.random.uniform((1024, 1024)) for _ in range(48)]
e = tf.experimental
host = [e.get_gpu_host_bytes_in_use(0), e.get_gpu_host_peak_bytes_in_use(0)]
print(json.dumps([e.get_bytes_reclaimed(0), e.get_current_bytes_reclaimed(0),
                  e.get_peak_bytes_reclaimed(0), e.get_num_single_reclaims(0)
                  + e.get_num_full_reclaims(0)] + host + [e.lms_summary()]))
"""
    moved, now, peak, reclaims, host, host_peak, summary = values(programs, code, pool=128)
    assert moved >= 64 << 20 and 64 << 20 <= now <= peak <= moved and reclaims > 0
    assert now <= host <= host_peak
    assert summary.startswith("Large Model Support: on")


HALF = "tf.fill((1024, 1024), n / 2)"
KEPT = {
    "tensor": "tf.fill((1024, 1024), float(n))",
    # Movable from the first operation on that finds it alone with its tensor.
    "variable": f"tf.Variable({HALF}); kept[n].assign_add({HALF})",
}


@pytest.mark.parametrize("kind", sorted(KEPT))
def test_values_survive(programs, kind, request):
    """Each tensor that moved out reads as it was."""
    if kind == "tensor":
        request.getfixturevalue("eager_moves")
    code = """
tf.config.experimental.set_lms_enabled(True)
kept = {}
for n in range(64): kept[n] = %s
now = tf.experimental.get_current_bytes_reclaimed(0)
right = all((kept[n].numpy() == n).all() for n in kept)
summary = tf.experimental.lms_summary()
print(json.dumps([right, tf.experimental.get_bytes_reclaimed(0), now, summary]))
"""
    same, moved, now, summary = values(programs, code % KEPT[kind], pool=128)
    assert same and moved >= now >= 64 << 20
    assert summary.startswith("Large Model Support: on")


def test_exclusion(programs, eager_moves):
    code = """
tf.config.experimental.set_lms_enabled(True)
keep = tf.random.uniform((1024, 1024))
variable = tf.Variable(tf.random.uniform((1024, 1024)))
tf.experimental.lms_exclude(keep)
tf.experimental.lms_exclude(variable)
full = [tf.random.uniform((1024, 1024)) for _ in range(48)]
s = tf.experimental.lms_statistics()["devices"][0]
print(json.dumps([s["excluded_bytes"] + s["handed_out_bytes"], s["bytes_reclaimed"]]))
"""
    kept, moved = values(programs, code, pool=128)
    assert kept >= 8 << 20 and moved > 0  # their pointers were handed out to name them


def test_device_limit(programs, eager_moves):
    """A limit below the pool holds."""
    code = """
tf.config.experimental.set_lms_options(device_limit="64MiB")
tf.config.experimental.set_lms_enabled(True)
kept = [tf.random.uniform((1024, 1024)) for _ in range(32)]
print(json.dumps(tf.experimental.get_peak_bytes_in_use(0)))
"""
    assert values(programs, code) <= 64 << 20


WRONG = {
    "tf.config.experimental.set_lms_options(host_limit='900TiB')":
        ("ValueError", "host_limit", "this machine has"),
    "tf.config.experimental.set_lms_options(device_limit='900TiB')":
        ("ValueError", "device_limit", "TF_CPU_BFC_MEM_LIMIT_IN_MB"),
    "tf.config.experimental.set_lms_options(host_limit='many')":
        ("ValueError", "host_limit must be bytes or a size", "'many'"),
    "tf.config.experimental.set_lms_options(device_limit=-1)":
        ("ValueError", "device_limit cannot be negative"),
    "tf.experimental.get_num_allocs('first')": ("ValueError", "num_allocs", "first"),
    "tf.experimental.lms_exclude('x')": ("TypeError", "eager tensor", "str"),
}  # fmt: skip


def test_wrong_arguments(programs):
    code = """
said = []
for call in %r:
    try:
        eval(call)
        said.append("nothing")
    except Exception as error:
        said.append(type(error).__name__ + ": " + str(error))
print(json.dumps(said))
"""
    for line, words in zip(values(programs, code % list(WRONG)), WRONG.values()):
        assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("code", "pool", "env", "words"),
    [
        (
            USE + "tf.config.experimental.set_lms_enabled(True)", POOL, {},
            ("RuntimeError", "made its devices already", "TF_LMS=1"),
        ),
        (
            "tf.config.experimental.set_lms_enabled(True)", None, {},
            ("RuntimeError", "sees no GPU", "TF_CPU_ALLOCATOR_USE_BFC"),
        ),
        ("", POOL, {"TF_LMS": "device_limt=1G"}, ("ValueError", "TF_LMS takes", "device_limt")),
        ("", POOL, {"LMS_DEBUG": "choas"}, ("ValueError", "LMS_DEBUG knows", "choas")),
    ],
)  # fmt: skip
def test_wrong_use(programs, code, pool, env, words):
    line = error_of(programs, code, pool, env=env)
    assert all(word in line for word in words), line
