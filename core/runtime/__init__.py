"""What every program needs beside its own work.

`commands/`    what is the same in all five programs' commands
`folders`      where a program may keep configuration, state, cache and network files
`settings`     what is configured, and who said so
`logs`         where log lines go, in which form, without secrets
`redact`       what must never be written down, taken out of logs and debug files
`clock`        what time it is: the system's or a test's
`tasks`        tasks that are held on to until they end
`sharing`      a look at a slow source, shared by all who ask
`slowing`      a look that is taken often while it finds changes
`retry`        a call that may fail for a while, repeated
`backup`       a user's home in one file, and put back
`garbage`      what the interpreter looks at when it looks for garbage
`database`     a daemon's database, opened and brought up to date
`network/`     streams between two parties, and the swarm
`http_client`  a stranger's answer over HTTP, within limits
`http_server`  HTTP inside a program's own loop and under its own signal handlers
`origin`       the id of the request that is worked on, in every log line on every machine
`tracing`      spans of OpenTelemetry, across machines
`metrics`      what a program counts, and how Prometheus reads it
`alerts`       who is told before money runs out
"""
