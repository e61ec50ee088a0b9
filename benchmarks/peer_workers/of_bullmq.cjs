// BullMQ: `node of_bullmq.cjs work`, or `publish MODULE FIRST COUNT SIZE BY`; the counterpart of work.py and publish.py.
const fs = require("fs");
const { Queue, Worker } = require("bullmq");

const { hostname, port, password } = new URL(process.env.PEERS_URL);
const connection = { host: hostname, port: Number(port), password: decodeURIComponent(password) };
const folder = process.env.PEERS_FOLDER;
const isKilled = process.env.PEERS_KILLED === "1";
const pause = () => new Promise((resolve) => (isKilled ? setTimeout(resolve, 1) : setImmediate(resolve)));
const opts = { attempts: 6, removeOnComplete: true };

async function publish([, ...numbers]) {
  const [first, count, size, by] = numbers.map(Number);
  const body = (number) => ({ body: String(number).padStart(8, "0").padEnd(size, "x") });
  const queue = new Queue("peers", { connection });
  const began = process.hrtime.bigint();
  const used = process.cpuUsage();
  for (let at = first; at < first + count; at += by) {
    const page = Array.from({ length: Math.min(by, first + count - at) }, (_, index) => body(at + index));
    if (by === 1) await queue.add("handle", page[0], opts);
    else await queue.addBulk(page.map((data) => ({ name: "handle", data, opts })));
  }
  const { user, system } = process.cpuUsage(used);
  console.log(JSON.stringify({ seconds: Number(process.hrtime.bigint() - began) / 1e9, cpu_s: (user + system) / 1e6 }));
  await queue.close();
}

function work() {
  const done = fs.openSync(`${folder}/done`, "a");
  const soon = isKilled ? { lockDuration: 3000, stalledInterval: 1000 } : {};
  const handle = async ({ data }) => {
    const number = Number(data.body.slice(0, 8));
    if (number % 50 === 0 && !fs.existsSync(`${folder}/failed-${number}`)) {
      fs.closeSync(fs.openSync(`${folder}/failed-${number}`, "wx"));
      throw new Error("once");
    }
    await pause();
    fs.writeSync(done, `${String(number).padStart(8, "0")}\n`);
    await pause();
  };
  new Worker("peers", handle, { connection, concurrency: 8, maxStalledCount: 3, ...soon });
}

const [what, ...words] = process.argv.slice(2);
if (what === "publish") publish(words);
else work();
