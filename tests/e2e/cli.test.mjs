// The command line as a user meets it: exact texts of trained models, and one-line errors.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { writeRandomModel } from "./random_model.mjs";
import { until } from "./server.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const protean = process.env.PROTEAN ?? join(root, "build/protean");
const models = join(process.env.PROTEAN_DATA ?? join(root, "../shared/data"), "models");
const skip = existsSync(models) ? false : `needs ${models}; set PROTEAN_DATA to the test data folder`;

function run(...args) {
  const { status, stdout, stderr } = spawnSync(protean, args, {
    encoding: "utf8",
    input: args.input ?? "",
    env: { ...process.env, PROTEAN_MAX_NUM_SEQS: "8" },
  });
  return { status, stdout, stderr };
}

const greedy = ["--temperature", "0", "--prompt", ""];

describe("protean generate", { skip }, () => {
  it("writes the known text of a GGUF model, and nothing else", () => {
    const { status, stdout } = run("generate", join(models, "stories260K/stories260Ktok512.gguf"),
      "--max-model-len", "512", "--max-tokens", "200", "--dtype", "f32", ...greedy);
    assert.equal(status, 0);
    assert.equal(stdout, readFileSync(join(models, "stories260K/expected_greedy_200.txt"), "utf8"));
  });

  it("writes the known beginning of a safetensors model at both precisions", () => {
    for (const folder of ["tinystories-656k", "tinystories-656k-bf16"]) {
      for (const dtype of ["f32", "bf16"]) {
        const { stdout } = run("generate", join(models, folder), "--max-tokens", "24",
          "--dtype", dtype, ...greedy);
        assert.match(stdout, /^Once upon a time, there was a little girl named Lily\. She had a toy car/);
      }
    }
  });

  it("writes at every precision, the same text alone and with two threads", () => {
    for (const dtype of ["s24", "w8", "w4", "w3", "w8a8", "w8a7", "w4a8"]) {
      const say = (threads) => run("generate", join(models, "tinystories-656k"), "--max-tokens", "24",
        "--dtype", dtype, "--threads", threads, ...greedy);
      const { status, stdout, stderr } = say("1");
      assert.equal(status, 0, stderr);
      assert.ok(stdout.length > 20, `${dtype}: ${stdout}`);
      assert.equal(stdout, say("2").stdout);
    }
  });

  it("gives the same text for the same seed, at any thread count", () => {
    const say = (threads) => run("generate", join(models, "tinystories-656k"), "--prompt", "The dog",
      "--seed", "7", "--max-tokens", "60", "--threads", threads).stdout;
    assert.equal(say("1"), say("2"));
    assert.ok(say("1").length > 20);
  });
});

describe("protean chat and inspect", { skip }, () => {
  it("answers turn by turn", () => {
    const { status, stdout } = spawnSync(protean,
      ["chat", join(models, "tinystories-656k"), "--max-tokens", "20", "--seed", "1"],
      { encoding: "utf8", input: "Tell me of a cat.\n/reset\nAnd of a dog.\n/exit\nnever read\n" });
    assert.equal(status, 0);
    assert.ok(stdout.split("\n").filter((line) => line.length > 5).length >= 2, stdout);
  });

  // Talks through a pipe, with Protean's own model.
  const chat = (...lines) => spawnSync(protean,
    ["chat", join(root, "models/builtin"), "--max-tokens", "8", "--temperature", "0"],
    { encoding: "utf8", input: lines.map((line) => `${line}\n`).join("") });

  it("knows its commands, and refuses others", () => {
    const saved = join(mkdtempSync(join(tmpdir(), "protean-chat-")), "talk.json");
    const { status, stdout, stderr } = chat("/help", "/rest", "/xyzzy", "/save", "Hello", "/system You are a cat.",
      "/system", "Hello,\\", "you", '"""', "one", "two", '"""', `/save ${saved}`, `/save ${saved}`, "/exit", "never read");
    assert.equal(status, 0);
    for (const command of ["/help", "/reset", "/system", "/save", "/exit"]) assert.ok(stdout.includes(`${command} `));
    assert.match(stderr, /no command \/rest: did you mean \/reset\?/);
    assert.match(stderr, /no command \/xyzzy: \/help lists them/);
    assert.match(stderr, /\/save needs the name of a file/);
    assert.match(stdout, /You are a cat\./);
    assert.match(stderr, /the file exists/);
    const { messages } = JSON.parse(readFileSync(saved, "utf8"));
    assert.deepEqual(messages.map(({ role }) => role), ["system", "user", "assistant", "user", "assistant"]);
    assert.deepEqual(messages.filter(({ role }) => role === "user").map(({ content }) => content),
      ["Hello,\nyou", "one\ntwo"]);
  });

  it("edits lines on a terminal and brings back earlier ones", async () => {
    const command = `${protean} chat ${join(root, "models/builtin")} --max-tokens 4 --temperature 0`;
    const child = spawn("script", ["-qec", command, "/dev/null"], { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, TERM: "xterm" } });
    let shown = "";
    child.stdout.setEncoding("utf8").on("data", (text) => { shown += text; });
    const ended = new Promise((settle) => child.once("close", settle));
    // A prompt is shown once the terminal hands over each key. Behind it come escapes at most, until something is typed.
    const prompts = () => /> (\x1b\[[\d;?]*[A-Za-z])*$/.test(shown) ? shown.split("> ").length - 1 : 0;
    const after = (count) => until(() => prompts() >= count, () => shown);
    await after(1);
    child.stdin.write("/system A\x7fBC\n");  // Backspace takes the A back
    await after(2);
    child.stdin.write("/system\n");
    await after(3);
    child.stdin.write("\x1b[A\x1b[A!\n");  // the line before the last one, and one more letter
    await after(4);
    child.stdin.write("/system\n");
    await after(5);
    child.stdin.write("\x04");
    assert.equal(await ended, 0);
    assert.match(shown, /\nBC\r?\n/);
    assert.match(shown, /\nBC!\r?\n/);
  });

  it("ends generated text with a newline on a terminal, and only there", () => {
    const args = ["generate", join(root, "models/builtin"), "--prompt", "Hello", "--max-tokens", "4", "--temperature", "0"];
    const piped = run(...args).stdout;
    assert.doesNotMatch(piped, /\n$/);
    const { stdout } = spawnSync("script", ["-qec", [protean, ...args].join(" "), "/dev/null"], { encoding: "utf8" });
    assert.match(stdout, /\r?\n$/);
  });

  it("recognises a llama2.c checkpoint", () => {
    for (const name of ["stories260K.bin", "stories260K-q80.bin"]) {
      const { status, stderr } = run("inspect", join(models, "stories260K", name));
      assert.equal(status, 2);
      assert.match(stderr, /is a llama2\.c checkpoint \(5 layers, hidden 64, 8 heads, vocabulary 512, context 512 tokens\)/);
      assert.match(stderr, /convert it to GGUF/);
    }
  });

  it("says what a model is", () => {
    const { status, stdout } = run("inspect", join(models, "tinystories-656k"));
    assert.equal(status, 0);
    for (const part of ["llama: 2 layers", "8 heads of 16, 4 KV heads", "512 B a token", "1 stage x TP 1"]) {
      assert.ok(stdout.includes(part), `${part} is missing in\n${stdout}`);
    }
  });
});

describe("what a user can get wrong", { skip }, () => {
  let scratch;
  before(() => { scratch = mkdtempSync(join(tmpdir(), "protean-cli-")); });
  after(() => rmSync(scratch, { recursive: true, force: true }));

  // A copy of a good model with one thing broken.
  function broken(name, breakage) {
    const folder = join(scratch, name);
    cpSync(join(models, "tinystories-656k"), folder, { recursive: true });
    breakage(folder);
    return folder;
  }
  const edit = (file, change) => (folder) => {
    const path = join(folder, file);
    writeFileSync(path, change(readFileSync(path, "utf8")));
  };
  const cases = [
    ["truncated weights", (f) => truncateSync(join(f, "model.safetensors"), 100_000), /model\.safetensors/],
    ["no weights", (f) => rmSync(join(f, "model.safetensors")), /safetensors/],
    ["unknown architecture", edit("config.json", (t) => t.replace("LlamaForCausalLM", "WibbleForCausalLM")),
      /WibbleForCausalLM/],
    ["config that is no JSON", edit("config.json", () => "{"), /config\.json/],
    ["wrong shape", edit("config.json", (t) => t.replace(/"intermediate_size": \d+/, '"intermediate_size": 385')),
      /mlp\.|intermediate|shape/],
    ["broken tokenizer", edit("tokenizer.json", (t) => t.slice(0, t.length / 2)), /tokenizer\.json/],
    ["no tokenizer", (f) => rmSync(join(f, "tokenizer.json")), /token/],
  ];
  for (const [name, breakage, words] of cases) {
    it(`${name}: one line, exit code 2`, () => {
      const { status, stderr, stdout } = run("generate", broken(name.replaceAll(" ", "-"), breakage), ...greedy);
      assert.equal(status, 2, stderr);
      assert.equal(stdout, "");
      assert.equal(stderr.trim().split("\n").length, 1, stderr);
      assert.match(stderr, words);
    });
  }

  it("a wrong flag, value, file or port", () => {
    const model = join(models, "tinystories-656k");
    for (const [args, words] of [
      [["serve", join(scratch, "nothing")], /nothing cannot be found/],
      [["serve", model, "--max-model-len", "many"], /--max-model-len many/],
      [["serve", model, "--kv-cache-memory", "1KiB", "--max-model-len", "512"], /--kv-cache-memory/],
      [["serve", model, "--host", "256.1.1.1"], /256\.1\.1\.1/],
      [["generate", model, "--dtype", "fp4"], /fp4/],
      [["generate", model, "--prompt", "word ".repeat(2000)], /tokens/],
    ]) {
      const { status, stderr } = run(...args);
      assert.equal(status, 2, `${args.join(" ").slice(0, 80)}: ${stderr}`);
      assert.match(stderr, words);
    }
  });
});

describe("weights and logits that are not finite", () => {
  let folder;
  before(() => { folder = mkdtempSync(join(tmpdir(), "protean-finite-")); });
  after(() => rmSync(folder, { recursive: true }));

  it("are refused with their tensor while the checkpoint is read", () => {
    const model = writeRandomModel(join(folder, "nan"), 2,
      (name, i) => (name === "model.layers.1.mlp.up_proj.weight" && i === 5 ? NaN : undefined));
    const { status, stdout, stderr } = run("generate", model, "--max-tokens", "3", ...greedy);
    assert.notEqual(status, 0);
    assert.equal(stdout, "");
    assert.match(stderr, /layer 1, up projection, rows from 0: .*NaN or infinity/);
  });

  it("fail the requests of a model that overflows, and no report holds them", () => {
    const model = writeRandomModel(join(folder, "overflow"), 2, (name) => (name === "model.norm.weight" ? 3e38 : undefined));
    const generated = run("generate", model, "--max-tokens", "3", "--temperature", "0", "--prompt", "Once upon");
    assert.notEqual(generated.status, 0);
    assert.match(generated.stderr, /the model computed NaN or infinity/);
    const text = join(folder, "text.txt");
    writeFileSync(text, "Once upon a time there was a lion.");
    const scored = run("eval", model, "--text", text, "--json");
    assert.notEqual(scored.status, 0);
    assert.match(scored.stderr, /the model computed NaN or infinity/);
    assert.doesNotMatch(scored.stdout, /Infinity|NaN/);
  });
});
