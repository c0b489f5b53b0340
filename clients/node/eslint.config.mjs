// SPDX-License-Identifier: MIT

import js from '@eslint/js';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

const NODE = [
  'AbortController', 'AbortSignal', 'Buffer', 'URL', 'clearTimeout', 'console', 'performance', 'process',
  'setTimeout',
];

export default defineConfig(
  { ignores: ['dist', 'node_modules', 'test/types', 'test/readme.examples.mjs'] },
  js.configs.recommended,
  {
    files: ['src/**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // An async function rejects in place of throwing.
      '@typescript-eslint/require-await': 'off',
      // Causes have any type.
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      '@typescript-eslint/no-confusing-void-expression': 'off',
    },
  },
  { files: ['**/*.mjs'], languageOptions: { globals: Object.fromEntries(NODE.map((name) => [name, 'readonly'])) } },
);
