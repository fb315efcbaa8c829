"""What is the same in all five programs' commands.

`cli`              options, streams, errors, exit codes
`shared_commands`  `config`, `schema` and `debug save`
`config_file`      one setting of `config.toml` changed, its comments kept
`console`          how a command talks: results, questions, notes, progress
`results`          what the shared commands, failures and rehearsals print with --json
`schemas`          a JSON Schema per command, made from the types of its results
`spreadsheet`      a table as CSV
`debug`            what a person who helps needs to see, without secrets
"""
