"""Samples of operations on memory, and what their verifiers refuse; see `ir_samples`."""

MORE_PRELUDE = """\
  %sparse = make_view %tensor : sparse_view<4x8, tensor<?x?xf32, [?, 1]>, axis=0, padding=nan>
  %steps = make_view %tensor : view<4x8, tensor<?x?xf32, [?, 1]>, steps=[2, 8]>
  %ptrs = element_pointers %tensor, [%ints, %ints2], _ : tile<4x8xptr<f32>>
  %itensor = make_tensor %ip, [%n], [] : tensor<?xi32, [1]>
  %iview = make_view %itensor : view<4, tensor<?xi32, [1]>>
  %four = iota : tile<4xi32>
  %iptrs = element_pointers %itensor, [%four], _ : tile<4xptr<i32>>
  %good = compare %four, %four predicate=eq : tile<4xbool>
"""

SAMPLES: dict[str, list[str]] = {
    "make_view": [
        "%r = make_view %tensor : view<8x4, tensor<?x?xf32, [?, 1]>, order=[1, 0], padding=nan>",
        "%r = make_view %tensor : view<8x4, tensor<?x?xf32, [?, 1]>, order=[1, 0], steps=[3, 4]>",
        "%r = make_view %tensor : sparse_view<8x4, tensor<?x?xf32, [?, 1]>, axis=1>",
    ],
    "load": [
        "%r, %tok = load %view, [%zero, %one], _ : tile<4x8xf32>, token",
        "%tok = make_token : token\n%r, %tok2 = load %view, [%zero, %one], %tok latency=3 allow_tma=false "
        ": tile<4x8xf32>, token",
        "%r, %tok = load %steps, [%zero, %one], _ : tile<4x8xf32>, token",
        "%r, %tok = load %view, [%zero, %one], _ ordering=acquire scope=sys : tile<4x8xf32>, token",
        "%r, %tok = load %view, [%zero, %one], _ contained=true : tile<4x8xf32>, token\n"
        "%r2, %tok2 = load %view, [%one, %one], _ : tile<4x8xf32>, token",
    ],
    "store": [
        "%tok = store %view, %t, [%zero, %one], _ latency=1 : token",
        "%tok = store %view, %t, [%zero, %one], _ ordering=release scope=block contained=true : token",
    ],
    "load_sparse": [
        "%r, %tok = load_sparse %sparse, [%four, %zero], _ : tile<4x8xf32>, token",
        "%tok = make_token : token\n%r, %tok2 = load_sparse %sparse, [%four, %zero], %tok latency=2 "
        "ordering=relaxed scope=device : tile<4x8xf32>, token",
    ],
    "store_sparse": ["%tok = store_sparse %sparse, %t, [%four, %zero], _ : token"],
    "offset": ["%r = offset %ptrs, %ints : tile<4x8xptr<f32>>", "%r = offset %p, %n : ptr<f32>"],
    "element_pointers": [
        "%r = element_pointers %tensor, [%zero, %n], _ : ptr<f32>",
        "%r = element_pointers %itensor, [%four], %good promised=true : tile<4xptr<i32>>",
    ],
    "in_bounds": ["%r = in_bounds %tensor, [%ints, %ints2] : tile<4x8xbool>"],
    "load_pointers": [
        "%r, %tok = load_pointers %ptrs, _, _, _ : tile<4x8xf32>, token",
        "%r, %tok = load_pointers %ptrs, %bools, %t, _ latency=4 ordering=acquire scope=device "
        ": tile<4x8xf32>, token",
    ],
    "store_pointers": [
        "%tok = store_pointers %ptrs, %t, _, _ : token",
        "%tok = store_pointers %ptrs, %t, %bools, _ ordering=release scope=sys latency=2 : token",
    ],
    "atomic": [
        *[
            f"%r, %tok = atomic %iptrs, %four, %good, _ mode={mode} : tile<4xi32>, token"
            for mode in ("add", "max", "min", "and", "or", "xor", "xchg")
        ],
        "%r, %tok = atomic %ptrs, %t, _, _ mode=add ordering=relaxed scope=block : tile<4x8xf32>, token",
    ],
    "atomic_cas": [
        "%r, %tok = atomic_cas %iptrs, %four, %four, %good, _ : tile<4xi32>, token",
        "%r, %tok = atomic_cas %ptrs, %t, %u, _, _ ordering=acquire scope=sys : tile<4x8xf32>, token",
    ],
    "atomic_reduce": [
        "%tok = atomic_reduce %view, %t, [%zero, %one], _ mode=add : token",
        "%tok = atomic_reduce %iview, %four, [%zero], _ mode=max scope=block : token",
    ],
}

REFUSED: dict[str, list[tuple[str, str]]] = {
    "load_sparse": [
        ("%r, %tok = load_sparse %view, [%four, %zero], _ : tile<4x8xf32>, token", "takes a sparse view"),
        ("%r, %tok = load_sparse %sparse, [%zero, %zero], _ : tile<4x8xf32>, token", "row numbers are 4"),
        ("%r, %tok = load_sparse %sparse, [%four], _ : tile<4x8xf32>, token", "one part per axis"),
    ],
    "store_sparse": [
        ("%tok = store_sparse %sparse, %half, [%four, %zero], _ : token", "the tile is tile<4x8xf32>"),
        (
            "%tok = store_sparse %sparse, %t, [%four, %zero], _ ordering=acquire scope=sys : token",
            "ordering is one of weak, relaxed, release",
        ),
    ],
    "offset": [
        ("%r = offset %ints, %ints : tile<4x8xi32>", "moves pointers"),
        ("%r = offset %p, %ints : ptr<f32>", "integers of shape"),
        ("%r = offset %p, %n : i32", "the result is ptr<f32>"),
    ],
    "element_pointers": [
        ("%r = element_pointers %tensor, [%zero], _ : ptr<f32>", "a tile for each of 2 axes"),
        ("%r = element_pointers %tensor, [%zero, %zero], _ : ptr<i32>", "pointers to f32"),
        ("%r = element_pointers %tensor, [%zero, %zero], %bools : ptr<f32>", "the mask is"),
    ],
    "in_bounds": [
        ("%r = in_bounds %tensor, [%ints, %zero] : tile<4x8xbool>", "of one type and shape"),
        ("%r = in_bounds %tensor, [%words, %words] : tile<4x8xbool>", "i32 or i64"),
        ("%r = in_bounds %view, [%zero, %zero] : bool", "takes a tensor"),
    ],
    "load_pointers": [
        ("%r, %tok = load_pointers %t, _, _, _ : tile<4x8xf32>, token", "takes pointers"),
        (
            "%r, %tok = load_pointers %ptrs, %bools, _, _ : tile<4x8xf32>, token",
            "a mask comes with padding",
        ),
        ("%r, %tok = load_pointers %ptrs, _, _, _ scope=sys : tile<4x8xf32>, token", "a weak access has no"),
    ],
    "store_pointers": [
        ("%tok = store_pointers %ptrs, %ints, _, _ : token", "the tile is"),
        ("%tok = store_pointers %ptrs, %t, %good, _ : token", "the mask is"),
        ("%tok = store_pointers %ptrs, %t, _, _ latency=11 : token", "latency is 1 to 10"),
    ],
    "atomic": [
        ("%r, %tok = atomic %ptrs, %t, _, _ mode=max : tile<4x8xf32>, token", "atomic max is for i32"),
        ("%r, %tok = atomic %ptrs, %t, _, _ mode=mul : tile<4x8xf32>, token", "mode is one of"),
        (
            "%r, %tok = atomic %ptrs, %t, _, _ mode=add ordering=weak scope=none : tile<4x8xf32>, token",
            "ordering is one of relaxed",
        ),
    ],
    "atomic_cas": [
        ("%r, %tok = atomic_cas %ptrs, %t, %ints, _, _ : tile<4x8xf32>, token", "expected, desired and"),
        (
            "%r, %tok = atomic_cas %ptrs, %t, %u, _, _ scope=none : tile<4x8xf32>, token",
            "others have one",
        ),
    ],
    "atomic_reduce": [
        ("%tok = atomic_reduce %iview, %four, [%zero], _ mode=xchg : token", "gives nothing"),
        ("%tok = atomic_reduce %iview, %four, [%zero], _ mode=add scope=sys : token", "block or device"),
        (
            "%tok = atomic_reduce %iview, %four, [%zero], _ mode=add ordering=acq_rel : token",
            "ordering is one of relaxed",
        ),
    ],
    "make_view": [
        ("%r = make_view %tensor : view<4x8, tensor<?x?xf32, [?, 1]>, steps=[0, 1]>", "a step of 1 or more"),
        ("%r = make_view %tensor : sparse_view<4x8, tensor<?x?xf32, [?, 1]>, axis=2>", "no axis 2"),
    ],
}
