// Browsers start no Worker for a page that was opened as a file. There, search runs in a hidden frame of the page:
// this is what of the interface of Worker the site's scripts use.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.queue = [];
      window.addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        if (event.data && event.data.workerIsReady) {
          const queue = this.queue;
          this.queue = null;
          queue.forEach((data) => this.postMessage(data));
          return;
        }
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      this.frame.srcdoc =
        "<script>var postMessage = (data) => parent.postMessage(data, '*');" +
        "var importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise((resolve, reject) => {" +
        "var script = document.createElement('script'); script.src = url; script.onload = resolve; script.onerror = reject;" +
        "document.body.appendChild(script) })), Promise.resolve());</" + "script>" +
        `<script src="${new URL(url, location.href)}"></` + "script>" +
        "<script>postMessage({ workerIsReady: true })</" + "script>";
      document.documentElement.appendChild(this.frame);
    }
    postMessage(data) {
      if (this.queue) this.queue.push(data);
      else window.postMessage.call(this.frame.contentWindow, data, "*"); // the frame's own one sends to the page
    }
    terminate() {
      this.frame.remove();
    }
  };
}
