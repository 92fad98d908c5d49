// What every part of the page uses: elements, questions to the server, and the place in the address.

export const token = location.hash.slice(1).split("?")[0];
export const $ = (id) => document.getElementById(id);

const TURNING = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;
export const visible = (text) =>
  String(text).replace(TURNING, (c) => `‹U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Text of the store: a text node, in a direction of its own.
export const words = (text) => element("bdi", {}, visible(text));
export const decimal = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=0\.0+$)/, "").replace("-", "−");
export const colour = (k) => `c${k % 9}`; // a class
export const count = (n) => n.toLocaleString("en");
export const numbers = (text) => (text ?? "").split(",").filter(Boolean).map(Number);

export async function ask(path, parameters = {}, options = {}) {
  const response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, { ...options, headers: { "x-elmo-token": token } });
  const answer = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// What fails is told in one place, and does not end the page.
export async function attempt(work) {
  try {
    await work();
    $("problem").hidden = true;
  } catch (error) {
    $("problem").textContent = visible(error.message);
    $("problem").hidden = false;
  }
}

// One Tab stop for all buttons of a box, whatever it comes to hold: arrows, Home and End go from one to another.
export function roving(box) {
  const all = () => [...box.querySelectorAll("button:not([hidden])")];
  const stop = (to) => all().forEach((one) => (one.tabIndex = one === to ? 0 : -1));
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const renew = () => {
    const buttons = all();
    stop(buttons.find((one) => one === document.activeElement) ?? buttons.find((one) => one.ariaPressed === "true") ?? buttons[0]);
  };
  renew();
  new MutationObserver(renew).observe(box, { childList: true, subtree: true });
  box.addEventListener("focusin", (event) => event.target.tagName === "BUTTON" && stop(event.target));
  box.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS) || event.ctrlKey || event.altKey || event.metaKey || event.target.tagName !== "BUTTON") return;
    event.preventDefault();
    const buttons = all();
    buttons[Math.min(buttons.length - 1, Math.max(0, buttons.indexOf(event.target) + STEPS[event.key]))].focus();
  });
}

// One run of ``work`` at a time; of what is wanted meanwhile, the newest: a slider moves faster than an answer comes.
export function newest(work) {
  let [running, wanted] = [false, false];
  return async () => {
    wanted = true;
    if (running) return;
    running = true;
    while (wanted) {
      wanted = false;
      await attempt(work);
    }
    running = false;
  };
}

// The place in the address stands behind the token: #TOKEN?q=bank&sentence=12&word=3&s=1,0,0. Nothing after # is sent anywhere.
export const address = () => new URLSearchParams(location.hash.split("?").slice(1).join("?"));

export function goTo(parameters, entry) {
  const known = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null);
  const hash = `#${token}${known.length ? `?${new URLSearchParams(known)}` : ""}`;
  if (hash !== location.hash) history[entry ? "pushState" : "replaceState"](null, "", hash);
}
