// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Is one element of a float64 trace right? The judge of a tolerance game's last move; twin: core/protocol/referee.
///
/// A leaf is one operator's element: at most 256 terms, with partial sums above. Its operands are little-endian values as they are
/// committed, in three runs: of the trace (float64, the result first), of the model's tensors, and of a row that a machine signed.
/// Parameters are one 32-byte word each and come from the model's operator program, never from a party.
///
/// u = 2^-50, η = 2^-1074 (the smallest float64), γ_n = n·u / (1 − n·u). Inequalities are decided in integers; what the
/// arithmetic itself drops, less than 2^-90 of the values compared, counts for the trace.
interface IReferee {
    /// | kind | holds if | parameters | trace | model | row |
    /// |---|---|---|---|---|---|
    /// | Copy | y, x have the same bits | | y, x | | |
    /// | Input | y = row | row format | y | | x |
    /// | Embed | \|y − c·w\| ≤ u\|y\| + η | format, c | y | w | |
    /// | Linear | \|y − Σ w·x\| ≤ γ_n Σ\|w·x\| + η | format, n | y, x[n] | w[n] | |
    /// | Sum | \|y − Σ x\| ≤ γ_n Σ\|x\| + η | n | y, x[n] | | |
    /// | BiasSum | \|y − Σ x − b\| ≤ γ_{n+1} (Σ\|x\| + \|b\|) + η | format, n | y, x[n] | b | |
    /// | Squares | \|y − Σ x²\| ≤ γ_n Σ x² + η | n | y, x[n] | | |
    /// | NormScale | r > 0, \|r² (q + n·ε) − n\| ≤ 16u·n | n, ε | r, q | | |
    /// | Norm | \|y − x·r·g\| ≤ 4u\|y\| + η(\|x\| + \|r\| + \|g\| + 1), g = w or 1 + w | format, 0 or 1 | y, x, r | w | |
    /// | Rope | \|y − (a·c ± b·s)\| ≤ 3u(\|a·c\| + \|b·s\|) + 3η | format, 1 for minus | y, a, b | c, s | |
    /// | Score | \|y − c Σ q·k\| ≤ γ_{n+2} \|c\| Σ\|q·k\| + η; −∞ where masked | n, c, query, key, window | y, q[n], k[n] | | |
    /// | Stabiliser | −60 ≤ s − M ≤ 1 | | M, s | | |
    /// | Exp | \|e − exp(s − M)\| ≤ 2^-40 e + 2^-1022; 0 where s = −∞ | | e, M, s | | |
    /// | Probability | \|p·Z − e\| ≤ 4u·e + η(1 + Z) | | p, e, Z | | |
    /// | Mix | \|y − Σ p·v\| ≤ γ_n Σ\|p·v\| + η | n | y, p[n], v[n] | | |
    /// | Silu | \|y − g/(1 + e^-g)\| ≤ 2^-40 (\|g\| + \|y\|) + η | | y, g | | |
    /// | GeluTanh | \|y − g/(1 + e^-x)\| ≤ 2^-40 (\|g\| + \|y\|) + η, x = 2√(2/π)(g + 0.044715 g³) | | y, g | | |
    /// | Product | \|y − a·b\| ≤ u\|y\| + η | | y, a, b | | |
    /// | Add | \|y − (a + b)\| ≤ u\|y\| | | y, a, b | | |
    /// | Scale | \|y − c·x\| ≤ u\|y\| + η | c | y, x | | |
    /// | Softcap | \|y − c·tanh(x/c)\| ≤ 2^-40 (\|x\| + \|y\|) + η; −∞ stays | c | y, x | | |
    /// | WhitenDifference | \|d·σ − (row − s)\| ≤ 4u\|d·σ\| + η(1 + σ) | row format, σ's format | d, s | σ | y |
    /// | WhitenReference | \|d·σ − s\| ≤ 4u\|d·σ\| + η(1 + σ) | σ's format | d, s | σ | |
    /// | Exceeds | D² > T²·S², S² ≥ 0, D² ≥ 2^-512 | T in 10^-12 | D², S² | | |
    /// | Count | c = #{l ≥ θ} | n | c, θ, l[n] | | |
    /// | Maximum | l ≤ L | | L, l | | |
    /// | Greedy | l_j − l_tok > δ | δ | l_j, l_tok | | |
    /// | Gumbel | score_j − score_tok > δ, j inside narrowed filters | δ, τ, key0, key1, step, j, tok, min-p, top-k | l_j, l_tok, L, θ, c | | |
    /// | OutsideMinP | (l_k − l_tok)/τ + ln p > δ | δ, τ, min-p | l_k, l_tok | | |
    /// | OutsideTopK | (θ − l_tok)/τ > δ and c ≥ k | δ, τ, top-k | l_tok, θ, c | | |
    ///
    /// Constants c and ε are the bits of a float64; δ, τ and min-p are in 10^-6; formats are 0 bf16, 1 fp16, 2 fp32, 3 float64.
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
        Exceeds,
        Count,
        Maximum,
        Greedy,
        Gumbel,
        OutsideMinP,
        OutsideTopK
    }

    /// What a leaf proves, and about whom.
    enum Ruling {
        Fails, // the trace is wrong here, or holds a number that is not finite: its author loses
        Holds, // the accusation stands
        RowMalformed, // a signed row holds an infinity or NaN: a fault of its signer
        ModelMalformed // the registered model does, or a scale of it is not positive: no fault of who served it
    }

    error ParamsLength(uint256 have, uint256 want);
    error OperandsLength(uint256 have, uint256 want);
    error FormatUnknown(uint256 code);
    error FlagInvalid(uint256 word);
    error TermsOutOfRange(uint256 n);
    error ConstantInvalid(uint256 bits);
    error ParamOutOfRange(uint256 word);

    /// Rule on one leaf. Never reverts for what values the operands hold, only for parameters and lengths that no leaf of this kind
    /// has; a game takes both from the operator program, so neither party can make its opponent's move revert.
    function check(Kind kind, bytes calldata params, bytes calldata operands) external pure returns (Ruling);
}
