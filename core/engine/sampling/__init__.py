"""From logits to a token, so that an auditor can draw it again (`docs/protocol.md` §5).

`sampler`          what the next token of a request depends on beside its logits
`grammar`          which tokens may come in an answer that must follow a grammar
`grammar_process`  the process that follows grammars, asked and started anew
`grammar_child`    what runs in it
`edits`            biases, penalties and suppressed ends, applied to the logits
`filters`          the tokens that may be drawn: temperature, top-k, top-p, min-p
`noise`            the noise that a seed gives each token
`drawing`          the token with the highest score with its noise
`sampling`         the whole of it, for one request or a batch
`stops`            where an answer ends, and where its text is cut
`guesses`          the tokens that will probably come next
"""
