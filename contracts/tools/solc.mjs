#!/usr/bin/env node
// How do forge and py-solc-x call the compiler? This program speaks the native solc's command line for the three things they
// ask: --version, --help, and --standard-json on standard input. The compiler itself is the npm package `solc`, pinned in package-lock.json.
//
// Flags about paths (--base-path, --allow-paths, --include-path) are accepted and change nothing: both callers put every
// source's text into the JSON, and an import that is not there is an error, never a read from disk.

import { readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);

const FLAGS_WITH_VALUE = new Set(["--base-path", "--allow-paths", "--include-path"]);
const FLAGS_WITHOUT_VALUE = new Set(["--standard-json", "-"]);

/** Write all of `text` before returning: an exiting process drops what an asynchronous stream has not flushed. */
function writeAll(fd, text) {
  const bytes = Buffer.from(text, "utf8");
  let done = 0;
  while (done < bytes.length) {
    try {
      done += writeSync(fd, bytes, done, bytes.length - done);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error; // a full non-blocking pipe: the reader needs a moment
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2);
    }
  }
}

function fail(message) {
  writeAll(2, `${message}\n`);
  process.exit(1);
}

/** Read standard input to its end; a pipe may answer EAGAIN before the writer has started. */
function readAll() {
  for (;;) {
    try {
      return readFileSync(0, "utf8");
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2);
    }
  }
}

const argv = process.argv.slice(2);

if (argv.includes("--version")) {
  const version = require("solc").version();
  writeAll(1, `solc, the solidity compiler commandline interface\nVersion: ${version}\n`);
  process.exit(0);
}
if (argv.includes("--help")) {
  writeAll(1, "Usage: solc.mjs --version | --standard-json < input.json > output.json\n");
  process.exit(0);
}

for (let i = 0; i < argv.length; i++) {
  const flag = argv[i].split("=", 1)[0];
  if (FLAGS_WITH_VALUE.has(flag)) {
    if (!argv[i].includes("=")) i++;
  } else if (!FLAGS_WITHOUT_VALUE.has(flag)) {
    fail(`unrecognised option '${argv[i]}'`);
  }
}
if (!argv.includes("--standard-json")) fail("only --version, --help and --standard-json are supported");

writeAll(1, require("solc").compile(readAll()));
