"""The report's appearance: one sheet, light and dark, from a phone's width up."""

CSS = """
:root { color-scheme: light dark; --font: system-ui, sans-serif;
  --ink: #1d2521; --page: #fbfcfa; --soft: #5c6b64; --edge: #d8e0dc; --card: #f1f5f2;
  --right: #1b6b4c; --wrong: #b3401f;
  --line-0: #1b6b4c; --line-1: #c2562d; --line-2: #3a5fa8; --line-3: #8a5aa3; --line-4: #a3841f;
  --line-5: #4f8a99; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4ebe7; --page: #141a17; --soft: #9aaaa2; --edge: #2f3a35; --card: #1c2420;
  --right: #5fc79a; --wrong: #ee8a66;
  --line-0: #5fc79a; --line-1: #ee8a66; --line-2: #86a8ee; --line-3: #c79be0; --line-4: #dcc060;
  --line-5: #84c4d4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem 1rem 4rem; color: var(--ink);
  background: var(--page); font: 16px/1.55 var(--font); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .4rem 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--edge); }
p { margin: .5rem 0; } .soft { color: var(--soft); }
.verdict { font-size: 1.12rem; background: var(--card); border-left: 4px solid var(--line-0);
  padding: .8rem 1rem; border-radius: 0 6px 6px 0; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--edge); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td small { color: var(--soft); }
.figures { display: grid; gap: 1rem; margin-bottom: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.figures svg { width: 100%; height: auto; display: block; color: var(--ink); }
.examples { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
.example { background: var(--card); border-radius: 6px; padding: .7rem .9rem; min-width: 0; }
.example h3 { margin: 0 0 .2rem; font-size: 1rem; }
pre { margin: .5rem 0; padding: .6rem; background: var(--page); border: 1px solid var(--edge);
  border-radius: 4px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .85rem/1.45 ui-monospace, monospace; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
details { margin: .5rem 0; } summary { cursor: pointer; }
@media (max-width: 32rem) {
  body { padding: .8rem .7rem 3rem; } table { font-size: .78rem; }
  th, td { padding: .2rem .3rem; } th:first-child, td:first-child { white-space: normal; } }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
.verdict ul { margin: .2rem 0 .6rem; padding-left: 1.2rem; } .verdict p { margin: .2rem 0; }
.questions td:first-child { white-space: normal; min-width: 13rem; }
.left th, .left td { text-align: left; } .left td:nth-child(2) { white-space: normal; }
.curves .figures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.effects { margin: 1rem 0; max-width: 44rem; } .effects svg { width: 100%; height: auto; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""
