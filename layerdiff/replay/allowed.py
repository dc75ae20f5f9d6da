"""Which operators a trace may ask for: pure functions of their tensors, by name.

A list of what is allowed, never of what is not: ATen also opens files, draws random numbers and talks to devices, and
it grows. A name is looked up in torch only after it was found here, or in a namespace that the user trusts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from layerdiff.replay.refusal import CannotReplay


class OperatorName(NamedTuple):
    """`aten.add.Tensor` in its parts. `base` keeps the underscore of an in-place operator."""

    namespace: str
    base: str
    overload: str

    @property
    def function(self) -> str:
        """The base without the underscore that marks an in-place operator: `add` for `add_`."""
        return self.base[:-1] if self.in_place else self.base

    @property
    def in_place(self) -> bool:
        """Whether the operator writes its first operand. `__iand__` and its kind are written so too."""
        return (self.base.endswith("_") and not self.base.endswith("__")) or self.base in _IN_PLACE_DUNDER


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IN_PLACE_DUNDER: Final = frozenset({"__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"})


def listed(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


# Results that share the memory of an operand, or would if it could be viewed so.
VIEWS: Final = listed("""
    _reshape_alias _unsafe_view adjoint alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk
    contiguous detach diagonal expand expand_as flatten imag lift_fresh mH mT matrix_H movedim moveaxis narrow numpy_T permute
    positive ravel real reshape reshape_as resolve_conj resolve_neg select slice split split_with_sizes squeeze swapaxes
    swapdims t tensor_split hsplit vsplit dsplit transpose unbind unflatten unfold unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze view view_as view_as_complex view_as_real _conj _neg_view conj
""")

# One result an element, of the operands broadcast against each other.
ELEMENTWISE: Final = listed("""
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2
    atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max
    clamp_min clip complex conj_physical _conj_physical copysign cos cosh deg2rad digamma div divide elu eq erf erfc erfinv exp
    exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac gcd ge gelu glu greater greater_equal gt hardshrink
    hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isclose isfinite isinf isnan isneginf isposinf isreal lcm
    ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul multiply mvlgamma nan_to_num ne
    neg negative not_equal polar polygamma pow prelu _prelu_kernel rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu
    sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square sub subtract tan tanh threshold true_divide
    trunc where xlogy _add_relu special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit
    special_expm1 special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr special_logit
    special_ndtr special_ndtri special_round special_sinc special_xlog1py special_xlogy __and__ __or__ __xor__ __lshift__
    __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__
""")

_REDUCTIONS: Final = listed("""
    all amax amin aminmax any argmax argmin count_nonzero cosine_similarity cummax cummin cumprod cumsum logcumsumexp
    _logcumsumexp diff frobenius_norm linalg_norm linalg_vector_norm linalg_matrix_norm logsumexp special_logsumexp max mean
    median min mode nanmean nanmedian nansum norm nuclear_norm prod quantile nanquantile std std_mean sum sum_to_size trace var
    var_mean dist pairwise_distance _softmax softmax special_softmax _log_softmax log_softmax special_log_softmax _safe_softmax
    argsort kthvalue msort sort topk bincount bucketize histc isin searchsorted nonzero nonzero_static argwhere
    unique_consecutive unique_dim unique_dim_consecutive _unique _unique2 equal allclose
""")

_PRODUCTS: Final = listed("""
    _addmm_activation _int_mm addbmm addmm addmv addr baddbmm bilinear _trilinear bmm chain_matmul cross linalg_cross dot einsum
    ger inner kron linalg_matmul linalg_multi_dot linalg_vecdot linear matmul matrix_exp linalg_matrix_exp matrix_power
    linalg_matrix_power mm mv outer tensordot vdot cdist _cdist_forward _euclidean_dist _pdist_forward pdist _grouped_mm
    _scaled_mm _weight_int8pack_mm _weight_int4pack_mm linalg_cholesky linalg_cholesky_ex cholesky cholesky_solve
    cholesky_inverse det linalg_det _linalg_det inverse linalg_inv linalg_inv_ex linalg_solve linalg_solve_ex _linalg_solve_ex
    linalg_solve_triangular triangular_solve linalg_qr logdet slogdet
    linalg_slogdet _linalg_slogdet
""")

_LAYERS: Final = listed("""
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool1d_with_indices max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d _convolution _convolution_mode conv1d
    conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
    batch_norm native_batch_norm
    cudnn_batch_norm _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training group_norm native_group_norm instance_norm
    layer_norm native_layer_norm rms_norm _fused_rms_norm renorm _weight_norm _weight_norm_interface embedding one_hot
    affine_grid_generator grid_sampler grid_sampler_2d grid_sampler_3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d
    upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d channel_shuffle
    native_channel_shuffle pixel_shuffle pixel_unshuffle col2im im2col _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss hinge_embedding_loss
    huber_loss kl_div l1_loss margin_ranking_loss mse_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd
    poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft
    fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn _fft_c2c
    _fft_c2r _fft_r2c stft istft _native_multi_head_attention _transformer_encoder_layer_fwd mkldnn_rnn_layer _cudnn_rnn miopen_rnn
    _thnn_fused_lstm_cell _thnn_fused_gru_cell
""")

_ARRANGING: Final = listed("""
    _index_put_impl _pad_circular _pad_enum _stack _unsafe_index _unsafe_index_put as_strided_scatter block_diag cat clone
    column_stack concat concatenate constant_pad_nd copy diag diag_embed diagflat diagonal_scatter dstack fill fill_diagonal
    flip fliplr flipud gather hstack index index_add index_copy index_fill index_put index_reduce index_select lift
    masked_scatter masked_select meshgrid pad pad_sequence put reflection_pad1d reflection_pad2d reflection_pad3d repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d roll rot90 row_stack scatter scatter_add
    scatter_reduce select_scatter slice_scatter stack take take_along_dim tile tril triu vstack zero _to_copy to type_as
    _autocast_to_full_precision _autocast_to_reduced_precision _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half
    _cast_Int _cast_Long _cast_Short _local_scalar_dense item is_nonzero _is_all_true _is_any_true is_same_size _assert_async
    _assert_scalar _assert_tensor_metadata _functional_assert_async
""")

# Tensors out of nothing but shapes and scalars.
CREATING: Final = listed("""
    arange empty empty_like empty_permuted empty_strided eye fft_fftfreq fft_rfftfreq full full_like linspace logspace new_empty
    new_empty_strided new_full new_ones new_zeros ones ones_like range scalar_tensor tril_indices triu_indices zeros zeros_like
    _efficientzerotensor bartlett_window blackman_window hamming_window hann_window kaiser_window _shape_as_tensor _dim_arange
""")

# What a new tensor of these holds is nobody's to know until it is written.
UNWRITTEN: Final = listed("empty empty_like empty_permuted empty_strided new_empty new_empty_strided")

RANDOM: Final = listed("""
    rand rand_like randn randn_like randint randint_like randperm bernoulli binomial cauchy dropout native_dropout
    _fused_dropout alpha_dropout feature_dropout feature_alpha_dropout exponential geometric log_normal multinomial normal
    normal_functional poisson random uniform rrelu rrelu_with_noise rrelu_with_noise_functional fractional_max_pool2d
    fractional_max_pool3d _sample_dirichlet _standard_gamma _philox_normal _philox_uniform
""")

_REASONS: Final = {
    "_weight_int4pack_mm_for_cpu": "how its weights are packed depends on the processor that packed them",
    "nextafter": "its result depends on the dtype and has no meaning in float64",
    "from_file": "it opens a file",
}

_COPIES: Final = frozenset(f"{view}_copy" for view in VIEWS)
ALLOWED: Final = VIEWS | _COPIES | ELEMENTWISE | _REDUCTIONS | _PRODUCTS | _LAYERS | _ARRANGING | CREATING


def parse(name: str) -> OperatorName:
    """`name` in its parts; raises CannotReplay where it is no `namespace.name.overload`."""
    parts = name.split(".")
    if len(parts) != 3 or not all(_NAME.fullmatch(part) for part in parts):
        raise CannotReplay(f"{name[:80]!r} is no name of an operator (namespace.name.overload)")
    return OperatorName(*parts)


def require_allowed(name: OperatorName, trust: Collection[str]) -> None:
    """Raises CannotReplay, with its reason, unless a trace may ask for this operator. Looks nothing up in torch.

    `trust` names further namespaces; ATen's own list cannot be widened by it.
    """
    if name.namespace != "aten":
        if name.namespace not in trust:
            raise CannotReplay(f"operators of {name.namespace!r} are run only if you trust them: --trust-ops {name.namespace}")
        return
    if name.function in RANDOM:
        raise CannotReplay(f"aten.{name.base} draws random numbers; what it drew is taken as recorded")
    if name.function not in ALLOWED:
        reason = _REASONS.get(name.function, "it is not on the list of pure functions that a trace may ask for")
        raise CannotReplay(f"aten.{name.base} is not run: {reason}")


def is_random(name: str) -> bool:
    """Whether the operator draws random numbers: its results are taken as recorded. False for names that are none."""
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "aten" and OperatorName(*parts).function in RANDOM
