// The request that the playground sends: its options, and itself as curl and as Python.

import { byId, make } from "./dom.js";
import { keys, url } from "./server.js";
import { STRINGS, text } from "./strings.js";

/** Options by name: what an empty field means, and what the field allows. */
const OPTIONS = {
  temperature: { value: 0.7, min: 0, max: 2, step: 0.1 },
  max_tokens: { value: 128, min: 1, step: 1 },
  top_p: { min: 0, max: 1, step: 0.05 },
  top_k: { min: -1, step: 1 },
  min_p: { min: 0, max: 1, step: 0.01 },
  presence_penalty: { min: -2, max: 2, step: 0.1 },
  frequency_penalty: { min: -2, max: 2, step: 0.1 },
  repetition_penalty: { min: 0.01, step: 0.05 },
  seed: { step: 1 },
  n: { min: 1, max: 16, step: 1 },
  stop: { kind: "text" },
  ignore_eos: { kind: "checkbox" },
};
/** What OpenAI's client has no parameter for. */
const EXTRA = new Set(["top_k", "min_p", "repetition_penalty", "ignore_eos"]);

/** Make the fields of all options. */
export function optionFields() {
  byId("options").replaceChildren(...Object.entries(OPTIONS).map(([name, option]) => {
    const { kind = "number", value, ...limits } = option;
    const field = make("input", { type: kind, id: `option-${name}`, ...limits });
    if (value !== undefined) field.value = value;
    const label = STRINGS.optionNames[name];
    return kind === "checkbox" ? make("label", {}, field, ` ${label}`) : make("label", {}, label, field);
  }));
}

/** Return the options that are given. */
function options() {
  const given = {};
  for (const [name, { kind }] of Object.entries(OPTIONS)) {
    const field = byId(`option-${name}`);
    if (kind === "checkbox") {
      if (field.checked) given[name] = true;
    } else if (field.value !== "") given[name] = kind === "text" ? field.value : Number(field.value);
  }
  return given;
}

/** Return what all requests say beside their texts. Raises Error for a schema that is no JSON. */
export function wishes(model) {
  const said = { ...(model ? { model } : {}), ...options() };
  const schema = byId("schema").value.trim();
  if (schema) {
    try {
      said.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
    } catch (error) {
      throw new Error(text("badSchema", { reason: error.message }));
    }
  }
  return said;
}

/** Write a request as a command for a shell. */
function asCurl(body) {
  const quoted = (words) => `'${words.replaceAll("'", "'\\''")}'`;
  const key = keys.own || keys.admin ? ' \\\n  -H "Authorization: Bearer $OCTAVO_API_KEY"' : "";
  return `curl -N ${url("v1/chat/completions")}${key} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body, null, 2))}`;
}

/** Write a JSON value as Python has it. */
function literal(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) {
    return value.length ? `[\n${value.map((one) => `${deeper}${literal(one, deeper)},\n`).join("")}${indent}]` : "[]";
  }
  if (typeof value === "object") {
    const rows = Object.entries(value).map(([name, one]) => `${deeper}${JSON.stringify(name)}: ${literal(one, deeper)},\n`);
    return rows.length ? `{\n${rows.join("")}${indent}}` : "{}";
  }
  return JSON.stringify(value);
}

/** Write a request as a program for OpenAI's client. */
function asPython(body) {
  const key = keys.own || keys.admin ? 'os.environ["OCTAVO_API_KEY"]' : '"none"';
  const own = Object.entries(body).filter(([name]) => !EXTRA.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTRA.has(name)));
  const rows = own.map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`);
  if (Object.keys(extra).length) rows.push(`    extra_body=${literal(extra, "    ")},\n`);
  return `${key.startsWith("os") ? "import os\n\n" : ""}from openai import OpenAI\n\n`
    + `client = OpenAI(base_url=${JSON.stringify(String(url("v1")))}, api_key=${key})\n`
    + `stream = client.chat.completions.create(\n${rows.join("")})\n`
    + 'for chunk in stream:\n    for choice in chunk.choices:\n        print(choice.delta.content or "", end="", flush=True)\n';
}

/** Write a request in one of the two ways. */
export const asCode = (body, language) => (language === "python" ? asPython(body) : asCurl(body));
