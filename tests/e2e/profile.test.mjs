// The order in which a model's layers are lowered: it is measured, saved next to the packed weights
// and printed as a table; errors are one line.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { model, program, skip } from "./server.mjs";

const run = (...args) => spawnSync(program, args, { encoding: "utf8", input: "" });

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), "protean-profile-")); });
after(() => rmSync(scratch, { recursive: true, force: true }));

describe("protean profile", { skip }, () => {
  const layers = skip ? 0 : JSON.parse(readFileSync(join(model, "config.json"), "utf8")).num_hidden_layers;
  const text = () => {
    const path = join(scratch, "text.txt");
    if (!existsSync(path)) {
      // Some stories end early, which ones depends on the processor.
      const stories = [1, 2, 3, 4, 5].map((seed) =>
        run("generate", model, "--prompt", "Once", "--seed", String(seed), "--max-tokens", "150").stdout);
      writeFileSync(path, stories.join("\n"));
    }
    return path;
  };
  const cache = () => join(scratch, "cache");
  const long = (...args) => run("profile", model, "--calibrate", text(), "--variant-cache", cache(),
    "--samples", "2", ...args);
  const profile = (...args) => long("--sequence-length", "64", ...args);
  const kept = (name) => {
    const [folder] = readdirSync(cache());
    return JSON.parse(readFileSync(join(cache(), folder, name), "utf8"));
  };

  it("ranks every layer once, tells what orders cost, and keeps the order", () => {
    const { status, stdout, stderr } = profile("--json", "--table", "--text", text());
    assert.equal(status, 0, stderr);
    const report = JSON.parse(stdout);
    const order = report.order.map(({ layer }) => layer);
    assert.deepEqual([...order].sort((a, b) => a - b), [...Array(layers).keys()]);
    assert.ok(report.order.every(({ kl_nats }) => kl_nats > 0), stdout);
    const ranks = report.order.map(({ kl_nats, ...rank }) => rank);  // losses are kept by layer
    assert.deepEqual(kept("swap-order.w4.json").order, ranks);
    assert.equal(report.tables.length, 2);
    for (const table of report.tables) {
      const last = table.rows.map(({ perplexity }) => perplexity.at(-1));
      for (const perplexity of last) { // all layers lowered: no order matters, but to rounding of a mean
        assert.ok(Math.abs(perplexity - last[0]) < 1e-9 * last[0], `${last}`);
        assert.notEqual(perplexity, table.unchanged);
      }
    }
    // The same text measures the same, whatever it is called.
    assert.deepEqual(report.tables[0].rows, report.tables[1].rows);
    assert.equal(report.independence.rows.length, 2);
  });

  it("ranks halves apart, from the weights packed before", () => {
    const { status, stdout, stderr } = profile("--halves", "--weights", "0,0,1", "--metric", "l2");
    assert.equal(status, 0, stderr);
    assert.match(stdout, /layer 0 attention/);
    const { order, weights, metric } = kept("swap-order.w4.halves.json");
    assert.equal(new Set(order.map(({ layer, half }) => `${layer} ${half}`)).size, 2 * layers);
    assert.deepEqual([weights, metric], [[0, 0, 1], "l2"]);
  });

  it("says in a line what cannot be done", () => {
    const tooLong = long("--sequence-length", "32768");
    assert.equal(tooLong.status, 2, tooLong.stderr);
    assert.match(tooLong.stderr, /--sequence-length 32768: this model reads at most \d+ tokens/);
    for (const [args, words] of [
      [["--precision", "bf16"], /'bf16' is none of w8, /],
      [["--precision", "w5"], /'w5' is none of w8, /],
      [["--weights", "0,0,0"], /all 0/],
      [["--variant", "w4"], /--variant w4 is not PRECISION=MODEL/],
      [["--text", join(scratch, "missing")], /--text: .*missing' does not exist/],
    ]) {
      const { status, stdout, stderr } = profile("--table", ...args);
      assert.equal(status, 2, stderr);
      assert.equal(stdout, "");
      assert.match(stderr, words);
      assert.equal(stderr.trim().split("\n").length, 1, stderr);
    }
  });
});
