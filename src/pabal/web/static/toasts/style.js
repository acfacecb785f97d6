// The look of <pabal-toasts>. A constructed style sheet needs no permission of the page's Content-Security-Policy.

export const STYLE = new CSSStyleSheet();
STYLE.replaceSync(`
  :host {
    --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --hover: #f3f4f6;
    --accent: #0b57d0; --on-accent: #ffffff; --alarm: #b3261e; --on-alarm: #ffffff;
    color-scheme: light; display: inline-block; position: relative; color: var(--ink);
    font: 15px/1.45 system-ui, "Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", sans-serif; text-align: start;
  }
  @media (prefers-color-scheme: dark) { :host(:not([theme="light"])) {
    --ink: #e6e9ed; --soft: #a3adb8; --paper: #1c2026; --line: #3b434d; --hover: #2a3038;
    --accent: #a8c7fa; --on-accent: #062e6f; --alarm: #f2b8b5; --on-alarm: #601410; color-scheme: dark;
  } }
  :host([theme="dark"]) {
    --ink: #e6e9ed; --soft: #a3adb8; --paper: #1c2026; --line: #3b434d; --hover: #2a3038;
    --accent: #a8c7fa; --on-accent: #062e6f; --alarm: #f2b8b5; --on-alarm: #601410; color-scheme: dark;
  }
  :host([hidden]), [hidden] { display: none !important; }
  * { box-sizing: border-box; }
  button { font: inherit; color: inherit; background: none; border: 0; border-radius: 8px; cursor: pointer; }
  button:hover { background: var(--hover); }
  button:focus-visible, .panel:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
  .bell { position: relative; width: 44px; height: 44px; padding: 10px; color: var(--ink); }
  .bell svg { display: block; width: 24px; height: 24px; fill: currentColor; }
  .count {
    position: absolute; top: 2px; inset-inline-end: 0; min-width: 20px; padding: 0 5px; border-radius: 10px;
    background: var(--alarm); color: var(--on-alarm); font-size: 12px; line-height: 20px; font-weight: 600;
  }
  .panel {
    position: absolute; z-index: 2147483000; top: calc(100% + 8px); width: 380px; max-height: min(560px, 80vh);
    overflow: auto; overscroll-behavior: contain; border: 1px solid var(--line); border-radius: 12px;
    background: var(--paper); color: var(--ink); box-shadow: 0 8px 28px rgb(0 0 0 / 0.22);
  }
  .panel[data-align="end"] { right: 0; }
  .panel[data-align="start"] { left: 0; }
  header {
    position: sticky; top: 0; display: flex; flex-wrap: wrap; gap: 4px 8px; align-items: center; justify-content: space-between;
    padding: 8px 8px 8px 16px; background: var(--paper); border-bottom: 1px solid var(--line);
  }
  h2 { margin: 0; font-size: 16px; }
  header button, .actions button, .more { padding: 6px 10px; color: var(--accent); font-size: 14px; }
  .more { display: block; width: 100%; padding: 12px 16px; border-radius: 0; border-top: 1px solid var(--line); }
  ul { list-style: none; margin: 0; padding: 0; }
  li { padding: 12px 16px; border-bottom: 1px solid var(--line); }
  li:last-child { border-bottom: 0; }
  li[data-unread="true"] { border-inline-start: 4px solid var(--accent); padding-inline-start: 12px; }
  h3 { margin: 0; font-size: 15px; overflow-wrap: anywhere; }
  p { margin: 2px 0 0; white-space: pre-line; overflow-wrap: anywhere; }
  time, .note { color: var(--soft); font-size: 13px; }
  .note { margin: 0; padding: 12px 16px; }
  .actions { display: flex; flex-wrap: wrap; gap: 4px; align-items: center; margin: 4px 0 0 -10px; }
  .actions time { margin-inline-start: 10px; }
  .popups {
    position: fixed; z-index: 2147483001; inset-block-end: 16px; inset-inline-end: 16px;
    display: flex; flex-direction: column; gap: 8px; width: min(360px, calc(100vw - 32px)); pointer-events: none;
  }
  .popup {
    position: relative; padding: 12px 48px 12px 16px; border: 1px solid var(--line); border-radius: 12px; pointer-events: auto;
    background: var(--paper); color: var(--ink); box-shadow: 0 8px 28px rgb(0 0 0 / 0.22);
  }
  .popup[data-criticality="emergency"] { border-color: var(--alarm); border-width: 2px; }
  .popup button { position: absolute; top: 6px; inset-inline-end: 6px; width: 36px; height: 36px; font-size: 20px; line-height: 1; }
  .hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
  @media (max-width: 480px) {
    .panel[data-align] { position: fixed; top: auto; bottom: 8px; left: 8px; right: 8px; width: auto; max-height: 80vh; }
  }
`);
