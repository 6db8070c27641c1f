// Checks bodies against the server's own description of its API.

import assert from 'node:assert/strict';
import addFormats from 'ajv-formats';
import Ajv2020 from 'ajv/dist/2020.js';

// Returns a validator for the body of each path of /openapi.json.
export async function bodyValidators(url) {
  const document = await (await fetch(`${url}/openapi.json`)).json();
  const ajv = new Ajv2020({ strict: true, strictTypes: false, allowUnionTypes: true, strictRequired: false });
  addFormats(ajv);
  const validators = new Map();
  for (const [path, { post }] of Object.entries(document.paths)) {
    const schema = post?.requestBody?.content['application/json'].schema;
    if (schema) validators.set(path, ajv.compile(schema));
  }
  return validators;
}

// Returns a fetch() for clients: a body that the server accepts must be as /openapi.json says.
export function checkingFetch(url) {
  const validators = bodyValidators(url);
  return async (resource, init) => {
    const response = await fetch(resource, init);
    if (response.ok && typeof init?.body === 'string') {
      const path = new URL(resource.url ?? resource).pathname;
      const valid = (await validators).get(path);
      assert.ok(valid, `/openapi.json describes the body of ${path}`);
      assert.ok(valid(JSON.parse(init.body)), `${path} ${init.body}: ${JSON.stringify(valid.errors)}`);
    }
    return response;
  };
}
