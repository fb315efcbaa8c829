// A page that was opened from the disk may start no worker, so there the search works in a hidden frame instead. A server's pages keep theirs.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentDocument;
      inner.open();
      inner.write("<!doctype html><title>search</title>");
      inner.close();
      this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.createElement("script");
      script.src = new URL(address, location.href).href;
      this.begun = new Promise((done) => { script.onload = done; });
      inner.head.append(script);
    }

    postMessage(data) {
      this.begun.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
