"""Tensors in files: safetensors, npy, npz and GGUF, against the packages that others read and write them
with; hostile files."""

import json
import os
import struct
import zipfile

import numpy as np
import pytest

import eager

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
NAMES = dict(zip(DTYPES, ["BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F16", "F32", "F64"], strict=True))


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    out = {f"{d}.x": rng.integers(0, 2 if d == "bool" else 100, (3, 5)).astype(d) for d in DTYPES}
    out["number"] = np.array(2.5, np.float32)
    out["empty"] = np.zeros((0, 4), np.float64)
    out["naïve \"name\"\n"] = np.arange(7, dtype=np.int64)
    return out


def tensors(d):
    return {k: eager.Tensor.constant(v) for k, v in d.items()}


def same(found, want):
    assert set(found) == set(want)
    for k, v in want.items():
        got = found[k].numpy() if isinstance(found[k], eager.Tensor) else found[k]
        assert got.dtype == v.dtype.newbyteorder("=") and got.shape == v.shape, k
        np.testing.assert_array_equal(got, v)


def raw(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def write(tmp_path, content, name="m.safetensors"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


# ---- there and back ----


@pytest.mark.parametrize("name", ["m.safetensors", "m.npz"])
def test_save_and_load(tmp_path, name):
    want = arrays()
    eager.save(tmp_path / name, tensors(want))
    same(eager.load(tmp_path / name), want)
    assert os.listdir(tmp_path) == [name]  # no temporary file stays


def test_bfloat16(tmp_path):
    x = eager.Tensor.constant(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4), dtype="bfloat16")
    for name in ("m.safetensors", "m.npz", "m.npy"):
        eager.save(tmp_path / name, x if name == "m.npy" else {"x": x})
        y = eager.load(tmp_path / name)
        y = y if name == "m.npy" else y["x"]
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(eager.cast(y, "float32").numpy(), eager.cast(x, "float32").numpy())


def test_views_and_unevaluated_tensors_are_written_in_c_order(tmp_path):
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    t = eager.Tensor.constant(a)
    eager.save(tmp_path / "m.safetensors", {"t": eager.permute(t, (2, 0, 1)), "f": eager.flip(t, axis=1)[:, ::2], "b": eager.broadcast_to(t[0, 0], (5, 4)), "sum": t + 1})
    same(eager.load(tmp_path / "m.safetensors"), {"t": a.transpose(2, 0, 1), "f": a[:, ::-1][:, ::2], "b": np.broadcast_to(a[0, 0], (5, 4)), "sum": a + 1})


def test_trees(tmp_path):
    tree = {"layers": [{"w": np.ones((2, 2), np.float32), "b": None}, {"w": np.zeros(3, np.int32)}], "step": 7, "rate": 0.5}
    eager.save(tmp_path / "m.safetensors", tree)
    found = eager.load(tmp_path / "m.safetensors")
    assert set(found) == {"layers.0.w", "layers.1.w", "step", "rate"} and found["step"].item() == 7
    like = {"layers": [{"w": eager.Tensor.zeros((2, 2))}, {"w": eager.Tensor.zeros((3,))}], "step": eager.Tensor.zeros(()), "rate": eager.Tensor.zeros(())}
    back = eager.load(tmp_path / "m.safetensors", like=like)
    np.testing.assert_array_equal(back["layers"][0]["w"].numpy(), np.ones((2, 2)))
    like["layers"][0]["w"] = eager.Tensor.zeros((2, 3))
    like["more"] = eager.Tensor.zeros(())
    with pytest.raises(ValueError, match=r"missing: more; wrong shape: layers.0.w \(2, 2\) for \(2, 3\)"):
        eager.load(tmp_path / "m.safetensors", like=like)
    with pytest.raises(ValueError, match="two tensors would be called 'a.b'"):
        eager.save(tmp_path / "x.safetensors", {"a.b": np.ones(1), "a": {"b": np.ones(1)}})
    with pytest.raises(TypeError, match="'s' is 'text'"):
        eager.save(tmp_path / "x.safetensors", {"s": "text"})
    assert not (tmp_path / "x.safetensors").exists()


def test_metadata_and_names(tmp_path):
    eager.save_safetensors(tmp_path / "m.safetensors", {"x": np.ones(2)}, metadata={"format": "pt", "ünï\n": '"quoted"'})
    w = eager.open_weights(tmp_path / "m.safetensors")
    assert w.metadata == {"format": "pt", "ünï\n": '"quoted"'}
    assert list(w) == ["x"] and w.shape("x") == (2,) and w.dtype("x") == "f64" and w.stored("x") == "F64" and w.format == "safetensors"
    with pytest.raises(KeyError, match="has no tensor 'y'"):
        w["y"]
    with pytest.raises(ValueError, match="ends in .safetensors"):
        eager.save_safetensors(tmp_path / "m.npz", {})
    with pytest.raises(ValueError, match="does not end in"):
        eager.save(tmp_path / "m.unknown", {"x": np.ones(2)})
    with pytest.raises(ValueError, match="holds one tensor, not 2"):
        eager.save(tmp_path / "m.npy", {"x": np.ones(2), "y": np.ones(2)})
    with pytest.raises(FileNotFoundError):
        eager.load(tmp_path / "none.safetensors")


def test_against_the_safetensors_package(tmp_path):
    st = pytest.importorskip("safetensors.numpy")
    want = arrays()
    eager.save(tmp_path / "ours.safetensors", tensors(want))
    same(st.load_file(tmp_path / "ours.safetensors"), want)
    st.save_file(want, tmp_path / "theirs.safetensors", metadata={"a": "b"})
    same(eager.load(tmp_path / "theirs.safetensors"), want)


def test_against_numpy(tmp_path):
    want = arrays()
    want["fortran"] = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    want["big-endian"] = np.arange(5, dtype=">i4")
    del want["naïve \"name\"\n"]
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "theirs.npz", **want)
        same(eager.load(tmp_path / "theirs.npz"), want)
    rng = np.random.default_rng(1)
    for x in (rng.standard_normal(50000), rng.integers(0, 3, 200000).astype(np.int8), np.zeros(300000, np.float32), np.arange(70000)):
        for compressed in (False, True):
            eager.save(tmp_path / "ours.npz", {"x": x, "y": want["float32.x"]}, compressed=compressed)
            with np.load(tmp_path / "ours.npz") as z:
                same(dict(z), {"x": x, "y": want["float32.x"]})
            assert zipfile.ZipFile(tmp_path / "ours.npz").testzip() is None
            same(eager.load(tmp_path / "ours.npz"), {"x": x, "y": want["float32.x"]})
        np.savez_compressed(tmp_path / "theirs.npz", x=x)
        same(eager.load(tmp_path / "theirs.npz"), {"x": x})
    np.save(tmp_path / "a.npy", want["fortran"])
    np.testing.assert_array_equal(eager.load(tmp_path / "a.npy").numpy(), want["fortran"])
    eager.save(tmp_path / "b.npy", want["int16.x"])
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), want["int16.x"])
    np.savez(tmp_path / "o.npz", text=np.array(["a", "b"]), x=np.ones(3))
    w = eager.open_weights(tmp_path / "o.npz")
    assert w.dtype("text") is None and w["x"].numpy().sum() == 3
    with pytest.raises(TypeError, match="'text' is stored as <U1"):
        w["text"]


def test_torch_state_dicts(tmp_path):
    torch = pytest.importorskip("torch")
    m = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    m[0].weight.data = m[0].weight.data.to(torch.bfloat16)
    found = eager.load(m.state_dict())
    assert list(found) == list(m.state_dict()) and found["0.weight"].dtype == eager.bfloat16
    found["0.bias"].numpy()
    np.testing.assert_array_equal(found["0.bias"].numpy(), m[0].bias.detach().numpy())
    eager.save(tmp_path / "m.safetensors", m)
    back = eager.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back["1.running_var"].numpy(), m[1].running_var.numpy())
    torch.save(m.state_dict(), tmp_path / "m.pt")
    np.testing.assert_array_equal(eager.load(tmp_path / "m.pt")["0.bias"].numpy(), m[0].bias.detach().numpy())


# ---- nothing is read before it is used ----


def test_zero_copy_and_private(tmp_path):
    path = tmp_path / "m.safetensors"
    eager.save(path, {"x": np.arange(4096, dtype=np.float32)})
    before = path.read_bytes()
    x = eager.load(path)["x"]
    maps = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else str(path)
    assert str(path) in maps
    address = x.numpy().__array_interface__["data"][0]
    assert address % 64 == 0
    x[:10] = -1.0
    assert x.numpy()[0] == -1 and path.read_bytes() == before
    eager.save(path, {"x": np.zeros(3, np.float32)})  # replacing the file leaves tensors over the old one as they are
    assert x.numpy()[4095] == 4095


def test_slices_read_only_what_they_need(tmp_path):
    a = np.arange(4 * 6 * 5, dtype=np.int32).reshape(4, 6, 5)
    np.savez_compressed(tmp_path / "z.npz", a=a, f=np.asfortranarray(a))
    eager.save(tmp_path / "m.safetensors", {"a": a})
    for w in (eager.open_weights(tmp_path / "m.safetensors"), eager.open_weights(tmp_path / "z.npz")):
        for name in w:
            for key in (np.s_[1], np.s_[1:3], np.s_[:, 2:4], np.s_[..., 1], np.s_[-1, ::2, ::-1], np.s_[3:1], np.s_[:, -2:, 0:0], np.s_[::-3]):
                np.testing.assert_array_equal(w.slice(name, key).numpy(), a[key])
            for key in (np.s_[4], np.s_[0, 0, 0, 0], np.s_[-5]):
                with pytest.raises(IndexError):
                    w.slice(name, key)


def test_sparse_file_larger_than_memory_opens(tmp_path):
    path, n = tmp_path / "m.safetensors", 1 << 40
    head = json.dumps({"x": {"dtype": "F32", "shape": [n // 4], "data_offsets": [0, n]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        try:
            f.truncate(8 + len(head) + n)
        except OSError:
            pytest.skip("the file system has no sparse files of that size")
    w = eager.open_weights(path)
    assert w.shape("x") == (n // 4,)
    np.testing.assert_array_equal(w.slice("x", np.s_[n // 8 : n // 8 + 4]).numpy(), np.zeros(4))


# ---- shards ----


def shard(tmp_path, mapping, parts):
    for name, d in parts.items():
        eager.save(tmp_path / name, d, metadata={"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1, "deep": [[{}]]}, "weight_map": mapping}))
    return tmp_path / "model.safetensors.index.json"


def test_shards(tmp_path):
    parts = {"model-1.safetensors": {"a": np.ones(3), "b": np.arange(4)}, "model-2.safetensors": {"c": np.zeros((2, 2), np.float32)}}
    path = shard(tmp_path, {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}, parts)
    for p in (path, tmp_path):
        same(eager.load(p), {"a": np.ones(3), "b": np.arange(4), "c": np.zeros((2, 2), np.float32)})
    path = shard(tmp_path, {"a": "model-1.safetensors", "c": "model-2.safetensors"}, {})
    with pytest.raises(ValueError, match="has tensor 'b', which the index does not place there"):
        eager.load(path)
    path = shard(tmp_path, {"a": "model-1.safetensors", "b": "model-1.safetensors", "d": "model-1.safetensors"}, {})
    with pytest.raises(ValueError, match="has 2 tensors, the index places 3 there"):
        eager.load(path)
    for bad in ("../model-1.safetensors", "/etc/passwd", "", "a\\b"):
        with pytest.raises(ValueError, match="which is no file beside the index"):
            eager.load(shard(tmp_path, {"a": bad}, {}))
    with pytest.raises(OSError, match="cannot be opened"):
        eager.load(shard(tmp_path, {"a": "none.safetensors"}, {}))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="weight_map"):
        eager.load(path)


# ---- hostile headers ----

F = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE = {
    "no safetensors file": (b"1234567", None),
    "more than safetensors allows": (raw({}, length=1 << 60), None),
    "the file ends after": (raw({}, length=1000), None),
    "overlaps another": (raw({"a": F, "b": {**F, "data_offsets": [4, 12]}}, bytes(12)), None),
    "is not where the one before it ends": (raw({"a": F, "b": {**F, "data_offsets": [12, 20]}}, bytes(20)), None),
    "the tensors end at byte": (raw({"a": F}, bytes(9)), None),
    "of 4 bytes": (raw({"a": F}, bytes(4)), None),
    "takes 8 bytes by its shape and has 4": (raw({"a": {**F, "data_offsets": [0, 4]}}, bytes(4)), None),
    "lies at 8 to 0": (raw({"a": {**F, "data_offsets": [8, 0]}}, bytes(8)), None),
    "which the format does not know": (raw({"a": {**F, "dtype": "F31"}}, bytes(8)), None),
    "more elements than can be counted": (raw({"a": {**F, "shape": [1 << 40, 1 << 40]}}, bytes(8)), None),
    "is too large|a number that is too large": (raw(b'{"a":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,8]}}', bytes(8)), None),
    "not a whole number": (raw(b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', bytes(8)), None),
    "twice": (raw(b'{"a":%s,"a":%s}' % ((json.dumps({**F, "shape": [0], "data_offsets": [0, 0]}).encode(),) * 2)), None),
    'two of "shape"': (raw(b'{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', bytes(8)), None),
    'lacks "dtype"': (raw({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), None),
    "more than 32 dims": (raw({"a": {**F, "shape": [1] * 33}}, bytes(8)), None),
    "is missing": (raw(b'{"a":', b""), None),
    "something follows": (raw(b"{} x", b""), None),
    "no UTF-8": (raw(b'{"\xff":{}}', b""), None),
    "surrogate": (raw(b'{"\\ud800":{}}', b""), None),
    "a NUL": (raw(b'{"\\u0000":{}}', b""), None),
    "is no string": (raw({"__metadata__": {"a": 1}}, b""), None),
    'metadata "a" is there twice': (raw(b'{"__metadata__":{"a":"1","a":"2"}}', b""), None),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_headers_are_refused(tmp_path, message):
    with pytest.raises(ValueError, match=message):
        eager.load(write(tmp_path, HOSTILE[message][0]))


def test_dtypes_that_tensors_lack(tmp_path):
    path = write(tmp_path, raw({"a": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}, "b": {**F, "data_offsets": [8, 16]}}, bytes(16)))
    w = eager.open_weights(path)
    assert w.dtype("a") is None and w["b"].numpy().sum() == 0
    with pytest.raises(TypeError, match="'a' is stored as F8_E8M0"):
        eager.load(path)


def test_complex_numbers_float8_and_int4(tmp_path):
    """As NumPy and the safetensors package read and write them."""
    z = (np.arange(6) + 1j * np.arange(6)[::-1]).reshape(2, 3)
    eager.save(tmp_path / "m.npz", {"a": z, "b": z.astype(np.complex64), "x": np.ones(3)}, compressed=True)
    eager.save(tmp_path / "m.npy", eager.asarray(z).mT)
    with np.load(tmp_path / "m.npz") as f:
        same(dict(f), {"a": z, "b": z.astype(np.complex64), "x": np.ones(3)})
    same({"z": np.load(tmp_path / "m.npy")}, {"z": z.T})
    np.savez(tmp_path / "n.npz", a=np.asfortranarray(z), b=z.astype(">c8"), c=np.complex64(2j))
    same(eager.load(tmp_path / "n.npz"), {"a": z, "b": z.astype(np.complex64), "c": np.array(2j, np.complex64)})
    assert eager.load(tmp_path / "m.npz")["b"].dtype == "complex64" and eager.load(tmp_path / "m.npy").dtype == "complex128"

    x = eager.asarray(np.linspace(-6, 6, 8, dtype=np.float32))
    few = {d: x.astype(d) for d in ("float8_e4m3fn", "float8_e5m2", "int4")} | {"c": eager.asarray(z.astype(np.complex64)), "none": eager.zeros((0, 2), dtype="complex64")}
    eager.save(tmp_path / "m.safetensors", few)
    back = eager.load(tmp_path / "m.safetensors")
    for name, t in few.items():
        assert back[name].dtype == t.dtype and back[name].shape == t.shape
        np.testing.assert_array_equal(np.asarray(back[name].astype("complex64")), np.asarray(t.astype("complex64")))
    w = eager.open_weights(tmp_path / "m.safetensors")
    assert (w.stored("c"), w.stored("float8_e5m2"), w.dtype("c")) == ("C64", "F8_E5M2", "complex64")
    np.testing.assert_array_equal(np.asarray(w.slice("c", np.s_[1, :2])), z.astype(np.complex64)[1, :2])
    like = eager.load(tmp_path / "m.safetensors", like=few)
    assert like["int4"].dtype == "int4"
    with pytest.raises(ValueError, match="'a' is C128, which safetensors files do not have; use .npz"):
        eager.save(tmp_path / "m.safetensors", {"a": z})
    with pytest.raises(ValueError, match="'a' is F8_E4M3, which npz and npy files do not have; use .safetensors"):
        eager.save(tmp_path / "m.npz", {"a": few["float8_e4m3fn"]})
    with pytest.raises(ValueError, match="'a' is int4, which only .safetensors files can say"):
        eager.save(tmp_path / "m.npz", {"a": few["int4"]})


def test_misaligned_tensors_are_copied(tmp_path):
    head = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}).encode()
    path = write(tmp_path, struct.pack("<Q", len(head)) + head + b"\x07" + np.array([1.5, -2], np.float32).tobytes())
    same(eager.load(path), {"a": np.array([7], np.uint8), "b": np.array([1.5, -2], np.float32)})


def test_damaged_archives_are_refused(tmp_path):
    x = np.arange(1000, dtype=np.float32)
    rng = np.random.default_rng(0)
    for compressed in (False, True):
        eager.save(tmp_path / "m.npz", {"x": x}, compressed=compressed)
        good = (tmp_path / "m.npz").read_bytes()
        for n in list(range(0, 40)) + [100, 500, len(good) - 5, len(good) - 30]:
            with pytest.raises((ValueError, OSError)):
                eager.load(write(tmp_path, good[:n], "cut.npz"))
        for _ in range(200):
            b = bytearray(good)
            b[rng.integers(len(b))] ^= 1 << rng.integers(8)
            try:
                eager.load(write(tmp_path, bytes(b), "flip.npz"))
            except (ValueError, OSError, TypeError):
                pass
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as z:
        z.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match="is no .npy file"):
        eager.load(tmp_path / "z.npz")
    np.save(tmp_path / "p.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises((TypeError, ValueError)):
        eager.load(tmp_path / "p.npy")


def test_failed_saves_leave_the_old_file(tmp_path):
    path = tmp_path / "m.safetensors"
    eager.save(path, {"x": np.ones(2)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="__metadata__"):
        eager.save(path, {"__metadata__": np.ones(2)})
    with pytest.raises(OSError):
        eager.save(tmp_path / "no" / "such.safetensors", {"x": np.ones(2)})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["m.safetensors"]


# ---- GGUF ----

GGUF_TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


def quantized_blocks(gguf, kind, rng, rows, n):
    """Random bytes are valid blocks, once their scales are small numbers."""
    t = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[t]
    b = rng.integers(0, 256, (rows, n // block, size), dtype=np.uint8)
    halves = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}[kind]
    for h in halves:
        b[:, :, h : h + 2] = rng.uniform(-0.1, 0.1, (rows, n // block, 1)).astype(np.float16).view(np.uint8)
    return b.reshape(rows, -1), t


def gguf_file(gguf, path):
    rng = np.random.default_rng(3)
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint32("n", 7)
    w.add_float32("rate", 0.5)
    w.add_bool("yes", True)
    w.add_string("text", 'a "b"\n é')
    w.add_array("tokens", ["a", "b", "ü"])
    w.add_array("sizes", [1, 2, 3])
    want = {}
    for kind in GGUF_TYPES:
        if kind in ("F32", "F16"):
            x = rng.standard_normal((6, 256)).astype(kind.lower().replace("f", "float"))
            w.add_tensor(kind, x)
            want[kind] = x
        elif kind == "BF16":
            x = (rng.standard_normal((6, 256)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            w.add_tensor(kind, x.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
            want[kind] = (x.astype(np.uint32) << 16).view(np.float32)
        else:
            b, t = quantized_blocks(gguf, kind, rng, 6, 512)
            w.add_tensor(kind, b, raw_dtype=t)
            want[kind] = gguf.quants.dequantize(b, t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return want


def test_gguf(tmp_path):
    gguf = pytest.importorskip("gguf")
    want = gguf_file(gguf, tmp_path / "m.gguf")
    found, meta = eager.load_gguf(tmp_path / "m.gguf")
    assert set(found) == set(want)
    for k, v in want.items():
        x = eager.cast(found[k], "float32").numpy()
        np.testing.assert_allclose(x, v.astype(np.float32), rtol=1e-6, atol=1e-6, err_msg=k)
    assert meta["n"] == 7 and meta["rate"] == 0.5 and meta["yes"] is True and meta["text"] == 'a "b"\n é' and meta["tokens"] == ["a", "b", "ü"]
    assert meta["sizes"] == [1, 2, 3] and meta["general.architecture"] == "llama"
    w = eager.open_weights(tmp_path / "m.gguf")
    assert w.stored("Q4_K") == "Q4_K" and w.shape("Q4_K") == (6, 512)
    np.testing.assert_allclose(w.slice("Q4_K", np.s_[2:4, 10:300]).numpy(), want["Q4_K"][2:4, 10:300], rtol=1e-6, atol=1e-6)
    assert set(eager.load(tmp_path / "m.gguf")) == set(want)


def test_gguf_kept_quantized(tmp_path):
    gguf = pytest.importorskip("gguf")
    want = gguf_file(gguf, tmp_path / "m.gguf")
    found, _ = eager.load_gguf(tmp_path / "m.gguf", quantized=True)
    x = np.random.default_rng(0).standard_normal((1, 512)).astype(np.float32)
    for k in ("Q8_0", "Q4_0", "Q4_K"):
        q = found[k]
        assert isinstance(q, eager.QuantizedTensor) and tuple(q.shape) == (512, 6)
        np.testing.assert_allclose(q.dequantize().numpy(), want[k].T, rtol=1e-5, atol=1e-6, err_msg=k)
        np.testing.assert_allclose((eager.Tensor.constant(x) @ q).numpy(), x @ want[k].T, rtol=1e-4, atol=1e-4, err_msg=k)
    assert isinstance(found["Q6_K"], eager.Tensor)


def test_hostile_gguf(tmp_path):
    def info(name=b"x", dims=(4,), kind=0, offset=0):
        return struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)

    def file(infos, n=None, data=bytes(64), version=3):
        b = b"GGUF" + struct.pack("<IQQ", version, len(infos) if n is None else n, 0) + b"".join(infos)
        return b + bytes(-len(b) % 32) + data

    def refused(content, message):
        with pytest.raises(ValueError, match=message):
            eager.load(write(tmp_path, content, "m.gguf"))

    assert eager.load(write(tmp_path, file([info()]), "m.gguf"))["x"].numpy().shape == (4,)
    refused(file([info()], version=7), "version 7")
    refused(file([info()], n=1 << 60), "the file ends")
    refused(file([info(kind=99)]), "type 99")
    refused(file([info(dims=(33,), kind=8)]), "not whole blocks")
    refused(file([info(dims=(1 << 40, 1 << 40))]), "counted")
    refused(file([info(dims=(17,))]), "beyond the end")
    refused(file([info(offset=1 << 63)]), "beyond the end|multiple")
    refused(file([info(offset=8)]), "multiple of 32")
    refused(file([info(), info(b"y")]), "overlap")
    refused(file([info(), info(offset=32)]), "twice")
    good = file([info(), info(b"y", offset=32)])
    for n in range(4, len(good) - 32):
        with pytest.raises(ValueError):
            eager.load(write(tmp_path, good[:n], "m.gguf"))


def test_quantized_tensors_are_saved(tmp_path):
    rng = np.random.default_rng(0)
    q = {k: eager.quantize(rng.standard_normal((70, 16)).astype(np.float32), k) for k in ("int8", "int4", "int4_zp", "nf4")}
    eager.save(tmp_path / "m.safetensors", {"layer": q, "b": np.ones(3)})
    back = eager.load(tmp_path / "m.safetensors")
    for k in q:
        p = back[f"layer.{k}"]
        assert isinstance(p, eager.QuantizedTensor) and p.kind == k and tuple(p.shape) == (70, 16)
        np.testing.assert_array_equal(p.dequantize().numpy(), q[k].dequantize().numpy())
    assert set(eager.load_safetensors(tmp_path / "m.safetensors")) == {"b", *(f"layer.{k}" for k in q)}
