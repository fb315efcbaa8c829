"""The OpenAI protocol: what a body asks for, and how an answer looks.

`fields`         each field of a body honoured, ignored with a warning, or refused by name
`terms`          headers of ours as terms of the order
`tools`          which functions may be called, and the calls that answers make
`dialects`       how models write calls and thoughts
`items`          a body of /v1/responses as a conversation, and what it tells and keeps of it
`models`         what can be asked for now, at which price, with which tokenizer
`writing`        tokens as text that may be sent: whole characters, no stop string
`answer_form`    what every form of answers is made of
`response_form`  an answer as items of a response, and the events in which they come
`shapes`         completions, their chunks and their usage
`schemas`        what `/openapi.json` says of bodies and answers
"""
