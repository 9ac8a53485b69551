// The entry point for a notebook (anywidget calls `render`) and for a page, from disk or from `grpo_nb watch`
// (they call `mount` and `watch`). Python joins it with everything it imports into one module.

import {asBytes, asJson} from './data.js';
import {el} from './dom.js';
import {mount} from './mount.js';
import {watch} from './watch.js';

export {mount, watch};

export default {
  async render({model, el: root}) {
    root.classList.add('gv-widget');
    const place = el('div');
    root.append(place);
    const waiting = new Map();
    let next = 0, leave = null;
    const ask = block => new Promise(done => {
      const id = ++next;
      waiting.set(id, done);
      model.send({id, block});
    });
    const answer = (m, buffers) => {
      const done = waiting.get(m.id);
      waiting.delete(m.id);
      done?.(asJson(asBytes(buffers[0])));
    };
    const link = (s, g) => model.get('code').replace('@step', s).replace('@group', g);
    const moved = (s, g) => {
      model.set('step', s);
      model.set('group', g);
      model.save_changes();
    };
    const show = async () => {
      leave?.();
      const start = {step: model.get('step'), group: model.get('group')};
      leave = await mount(place, model.get('packed'), {plain: true, ask, start, link, moved});
    };
    const follow = () => {
      const at = place.gv, [step, group] = [model.get('step'), model.get('group')];
      if (at && (at.run.steps[at.now.step] != step || at.now.group != group))
        at.go(at.run.steps.indexOf(step), group, true);
    };
    const listening = {'msg:custom': answer, 'change:packed': show, 'change:step': follow, 'change:group': follow};
    for (const [event, act] of Object.entries(listening)) model.on(event, act);
    await show();
    return () => {
      for (const [event, act] of Object.entries(listening)) model.off(event, act);
      leave?.();
    };
  },
};
