// Models that the command line writes: quantised ones still tell their stories; errors are one line and
// leave no files.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { data, model, program, skip } from "./server.mjs";

const run = (...args) => spawnSync(program, args, { encoding: "utf8", input: "" });

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), "protean-quantize-")); });
after(() => rmSync(scratch, { recursive: true, force: true }));

describe("protean quantize", { skip }, () => {
  const text = () => {
    const path = join(scratch, "text.txt");
    if (!existsSync(path)) {
      const { stdout } = run("generate", model, "--prompt", "Once", "--seed", "1", "--max-tokens", "400");
      writeFileSync(path, stdout.repeat(4));
    }
    return path;
  };

  for (const [name, args, method] of [
    ["rounded w8", ["--to", "w8", "--method", "rtn"], "gptq"],
    ["awq w4", ["--to", "w4", "--method", "awq", "--group", "32"], "awq"],
    ["gptq w4", ["--to", "w4", "--method", "gptq", "--symmetric", "--group", "64"], "gptq"],
    ["both w4", ["--to", "w4", "--method", "awq+gptq", "--group", "128"], "awq"],
  ]) {
    it(`${name} tells a story`, () => {
      const output = join(scratch, name.replace(" ", "-"));
      const made = run("quantize", model, ...args, "--calibrate", text(), "--sequence-length", "256", "-o", output);
      assert.equal(made.status, 0, made.stderr);
      const config = JSON.parse(readFileSync(join(output, "config.json"), "utf8"));
      assert.equal(config.quantization_config.quant_method, method);
      const { status, stdout, stderr } = run("generate", output, "--prompt", "", "--temperature", "0",
        "--max-tokens", "24");
      assert.equal(status, 0, stderr);
      assert.match(stdout, /^Once upon a time, there was a/); // at 4 bits she may have another name
    });
  }

  it("reads GGUF, tokenizer and all", () => {
    const output = join(scratch, "from-gguf");
    const gguf = join(data, "models/stories260K/stories260Ktok512.gguf");
    const made = run("quantize", gguf, "--to", "w8", "--method", "rtn", "--group", "32", "-o", output);
    assert.equal(made.status, 0, made.stderr);
    const tell = (path) => run("generate", path, "--prompt", "Once upon", "--temperature", "0", "--max-tokens", "12").stdout;
    assert.equal(tell(output), tell(gguf));
  });

  it("says in a line what cannot be done, and leaves nothing behind", () => {
    const taken = join(scratch, "taken");
    mkdirSync(taken);
    writeFileSync(join(taken, "letter.txt"), "dear");
    const rounded = ["--method", "rtn", "--to", "w4"];
    assert.equal(run("quantize", model, ...rounded, "-o", join(scratch, "once")).status, 0);
    const before = readdirSync(scratch).sort();
    for (const [args, words] of [
      [[model, "-o", join(scratch, "new")], /--calibrate FILE/],
      [[model, "--calibrate", join(taken, "letter.txt"), "-o", join(scratch, "new")],
        /letter\.txt holds \d+ tokens, too few to calibrate with: give at least 128/],
      [[model, "--to", "bf16", "--method", "rtn", "-o", join(scratch, "new")], /--to: 'bf16' is none of w8, w4, w3/],
      [[model, ...rounded, "--group", "48", "-o", join(scratch, "new")], /--group: '48' is none of 32, 64, 128/],
      [[model, ...rounded, "-o", taken], /no model directory/],
      [[model, ...rounded, "-o", join(scratch, "once")], /--overwrite/],
      [[join(scratch, "once"), ...rounded, "-o", join(scratch, "new")], /quantised already/],
      [[model, "--calibrate", join(scratch, "none.txt"), "-o", join(scratch, "new")], /none\.txt/],
    ]) {
      const { status, stderr } = run("quantize", ...args);
      assert.equal(status, 2, `${args.join(" ")}: ${stderr}`);
      assert.equal(stderr.trim().split("\n").length, 1, stderr);
      assert.match(stderr, words);
    }
    assert.deepEqual(readdirSync(scratch).sort(), before);
    assert.equal(readFileSync(join(taken, "letter.txt"), "utf8"), "dear");
    assert.equal(run("quantize", model, ...rounded, "--overwrite", "-o", join(scratch, "once")).status, 0);
    assert.deepEqual(readdirSync(scratch).sort(), before);
  });
});

describe("protean make-model", () => {
  for (const format of ["hf", "gguf"]) {
    it(`writes a ${format} model that can be read`, () => {
      const output = join(scratch, `made-${format}`);
      const made = run("make-model", "--like", "150m", "--format", format, "-o", output);
      assert.equal(made.status, 0, made.stderr);
      const { status, stdout, stderr } = run("inspect", format === "hf" ? output : join(output, "150m.gguf"));
      assert.equal(status, 0, stderr);
      assert.match(stdout, /20 layers, hidden 768, FFN 2048, vocabulary 32000, tied/);
      rmSync(output, { recursive: true });
    });
  }

  it("knows no other models", () => {
    const { status, stderr } = run("make-model", "--like", "gpt-9", "-o", join(scratch, "none"));
    assert.equal(status, 2);
    assert.match(stderr, /gpt-9 is not known: it must be one of llama-3\.2-1b/);
  });
});
