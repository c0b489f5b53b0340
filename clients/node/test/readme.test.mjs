// SPDX-License-Identifier: MIT

// The examples of the README run as written, one after another. Only the port differs.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import ts from 'typescript';
import { Server } from './support.mjs';

test('the examples of the README run', async () => {
  const server = await Server.start();
  const printed = [];
  const log = console.log;
  try {
    const text = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
    const blocks = [...text.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code);
    assert.equal(blocks.length, 7);
    const seen = (globalThis.seen = { shipped: 0, stored: [] });
    const ship = 'const ship = async ({ signal }) => { if (!signal.aborted) seen.shipped += 1; };\n';
    const store = 'const store = (token) => seen.stored.push(token);\n';
    const end = `\nexport const end = () => clients.forEach((one) => one.disconnect());\n`;
    let source = ship + store + blocks.join('\n') + end;
    source = `const clients = [];\n${source.replaceAll('new Redis()', `clients[clients.push(new Redis(${server.port})) - 1]`)}`;
    const { outputText } = ts.transpileModule(source, { compilerOptions: { target: 'ES2022', module: 'ESNext' } });
    const file = new URL('readme.examples.mjs', import.meta.url);
    writeFileSync(file, outputText);
    console.log = (...words) => printed.push(words.join(' '));
    (await import(file)).end();
    assert.equal(seen.shipped, 1);
    assert.ok(seen.stored[0] > 0);
    assert.equal(await server.admin.get('result'), '42');
    assert.ok(printed.includes('1 0') && printed.includes('jobs held released'), printed.join('\n'));
  } finally {
    console.log = log;
    await server.stop();
  }
});

test('each option has a line in the README', () => {
  const text = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const names = ['request', 'locks'].flatMap((file) => {
    const source = readFileSync(new URL(`../src/${file}.ts`, import.meta.url), 'utf8');
    const [, options] = /export interface Locks?Options \{(.*?)\n\}/s.exec(source);
    return [...options.matchAll(/^ {2}(\w+)\?:/gm)].map(([, name]) => name);
  });
  assert.equal(names.length, 14);
  for (const name of names) assert.match(text, new RegExp(`^\\| \`${name}\` \\|`, 'm'), name);
});
