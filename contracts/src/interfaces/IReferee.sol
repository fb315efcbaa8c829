// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Is one element of a float64 trace right? Twin: core/dispute/referee.
///
/// A leaf is one operator's element of at most 256 terms. Its operands are little-endian, as they
/// are committed, in three runs: the trace's float64 values with the result first, the model's
/// values, a signed row's values. Parameters are words of the model's operator program.
interface IReferee {
    /// A leaf holds if its result y is the float64 nearest to the value, ties to even, zero as +0;
    /// a verdict, from Exceeds on, if its inequality holds. Sums drop what lies below 2^-80 of the
    /// unit of their largest term.
    ///
    /// | kind | value or inequality | parameters | trace | model | row |
    /// |---|---|---|---|---|---|
    /// | Copy | x, as it is | | y, x | | |
    /// | Input | row | row format | y | | x |
    /// | Embed | c·w | format, c | y | w | |
    /// | Linear | Σ w·x | format, n | y, x[n] | w[n] | |
    /// | Sum | Σ x | n | y, x[n] | | |
    /// | BiasSum | Σ x + b | format, n | y, x[n] | b | |
    /// | Squares | Σ x² | n | y, x[n] | | |
    /// | NormScale | (n / (q + n·ε))^½ | n, ε | r, q | | |
    /// | Norm | x·r·g, g = w or 1 + w | format, 0 or 1 | y, x, r | w | |
    /// | Rope | a·c ± b·s | format, 1 for minus | y, a, b | c, s | |
    /// | Score | c Σ q·k; −∞ where masked | n, c, query, key, window | y, q[n], k[n] | | |
    /// | Stabiliser | s, as it is | | M, s | | |
    /// | Exp | exp(s − M), s ≤ M; 0 where s = −∞ | | e, M, s | | |
    /// | Probability | e / Z | | p, e, Z | | |
    /// | Mix | Σ p·v | n | y, p[n], v[n] | | |
    /// | Silu | g/(1 + e^-g) | | y, g | | |
    /// | GeluTanh | g/(1 + e^-x), x = 2√(2/π)(g + 0.044715 g³) | | y, g | | |
    /// | Product | a·b | | y, a, b | | |
    /// | Add | a + b | | y, a, b | | |
    /// | Scale | c·x | c | y, x | | |
    /// | Softcap | c·tanh(x/c); −∞ stays | c | y, x | | |
    /// | WhitenDifference | (row − s)/σ | row format, σ's format | d, s | σ | y |
    /// | WhitenReference | s/σ | σ's format | d, s | σ | |
    /// | WhitenChange | (a − b)/σ | σ's format | d, a, b | σ | |
    /// | Exceeds | D² > T²·S², S² ≥ 0, D² ≥ 2^-512 | T in 10^-12 | D², S² | | |
    /// | Greedy | l_j − l_tok > δ | δ | l_j, l_tok | | |
    /// | Gumbel | score_j − score_tok > δ, j in filters | δ, τ, draw | l_j, l_tok, L, θ, c | | |
    /// | OutsideMinP | (l_k − l_tok)/τ + ln p > δ | δ, τ, min-p | l_k, l_tok | | |
    ///
    /// Constants c and ε are the bits of a float64; δ, τ and min-p are in 10^-6; formats are 0
    /// bf16, 1 fp16, 2 fp32, 3 float64; a draw is key0, key1, step, j, tok, min-p, top-k.
    enum Kind {
        Copy,
        Input,
        Embed,
        Linear,
        Sum,
        BiasSum,
        Squares,
        NormScale,
        Norm,
        Rope,
        Score,
        Stabiliser,
        Exp,
        Probability,
        Mix,
        Silu,
        GeluTanh,
        Product,
        Add,
        Scale,
        Softcap,
        WhitenDifference,
        WhitenReference,
        WhitenChange,
        Exceeds,
        Greedy,
        Gumbel,
        OutsideMinP
    }

    /// What a leaf proves, and about whom.
    enum Ruling {
        Fails, // the trace is wrong here, or holds a number that is not finite: its author loses
        Holds, // the accusation stands
        RowMalformed, // a signed row holds an infinity or NaN: a fault of its signer
        ModelMalformed // the registered model does, or a scale of it is not positive
    }

    error ParamsLength(uint256 have, uint256 want);
    error OperandsLength(uint256 have, uint256 want);
    error FormatUnknown(uint256 code);
    error FlagInvalid(uint256 word);
    error TermsOutOfRange(uint256 n);
    error ConstantInvalid(uint256 bits);
    error ParamOutOfRange(uint256 word);

    /// Rule on one leaf. The float64 that is due is v·(1 + shake·2^-24), rounded once more to the
    /// nearest, where v is the one above: −∞ stays, and a verdict has none. |shake| < 2^64.
    /// Reverts for parameters and lengths alone, which the operator program gives: no party can
    /// make its opponent's move revert.
    function check(Kind kind, bytes calldata params, bytes calldata operands, int256 shake)
        external
        pure
        returns (Ruling);
}
