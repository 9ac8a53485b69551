// For `grpo_nb watch`: polls its server, on this machine, for what the run has written since.

import {asJson} from './data.js';
import {el} from './dom.js';
import {mount} from './mount.js';

export async function watch(root, token, seconds = 2) {
  const get = async what => {
    const r = await fetch(`${what}${what.includes('?') ? '&' : '?'}token=${encodeURIComponent(token)}`);
    if (!r.ok) throw new Error(await r.text());
    return r;
  };
  const ask = async b => asJson(new Uint8Array(await (await get(`block?b=${b}`)).arrayBuffer()));
  const status = el('p', {class: 'gv-dim', role: 'status'}, 'waiting for the run …'), place = el('div');
  root.replaceChildren(status, place);
  status.style.font = '14px/1.45 system-ui, sans-serif';
  let stamp = null, leave = null, came = '';
  const look = async () => {
    const newest = await (await get('stamp')).text();
    if (newest == stamp) return;
    const packed = await (await get('packed')).json(), at = place.gv;
    const focused = document.activeElement?.classList.contains('gv-plot');
    const stay = at && at.now.step < at.run.S - 1;   // the reader is looking at an earlier step
    const start = stay ? {step: at.run.steps[at.now.step], group: at.now.group} : undefined;
    leave?.();
    leave = await mount(place, packed, {ask, start, alone: true});
    if (focused) place.querySelector('.gv-plot').focus({preventScroll: true});
    stamp = newest;
    const {done, planned, seconds_left: left, over} = place.gv.run.progress;
    came = `as of ${new Date().toLocaleTimeString()}`;
    const time = left == null ? '' : left < 90 ? `, about ${Math.round(left)} s left` : `, about ${Math.round(left / 60)} min left`;
    status.textContent = over ? `${came}: the run has ended after ${done} steps`
      : `${came}, step ${done}${planned ? ` of ${planned}` : ''}${time}; what the run writes comes in by itself`;
  };
  const again = async () => {
    try {
      await look();
    } catch (e) {                      // a TypeError: the server doesn't answer
      status.textContent = e instanceof TypeError
        ? `The watching has ended; what is here is ${came || 'nothing yet'}.` : String(e.message || e);
    }
    setTimeout(again, seconds * 1000);
  };
  await again();
}
