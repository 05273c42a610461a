// Browsers start no workers for pages that are opened from disk (file:). The search of the site runs in one, so there
// a worker is a hidden frame: it has a global scope of its own, and its script runs in it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const source = new URL(address, location.href).href;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><body>";
      this.frame = frame;
      this.ready = new Promise((resolve, reject) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = (...others) =>
            others.reduce((before, other) => before.then(() => added(inside, other, source)), Promise.resolve());
          added(inside, source).then(() => resolve(inside), reject);
        }, { once: true });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };

  const added = (inside, address, base) =>
    new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      script.src = new URL(address, base).href;
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error(`${script.src} cannot be loaded`)));
      inside.document.body.append(script);
    });
}
