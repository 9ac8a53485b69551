import js from '@eslint/js';
import globals from 'globals';

export default [
  {ignores: ['grpo_nb/assets/jax/**']},   // others' code
  js.configs.recommended,
  {
    files: ['grpo_nb/assets/**/*.js'],
    languageOptions: {ecmaVersion: 2024, sourceType: 'module', globals: {...globals.browser, ...globals.worker}},
    linterOptions: {reportUnusedDisableDirectives: true},
    rules: {'no-var': 'error', 'prefer-const': 'error'},
  },
];
