// What the types of the library for Node have to allow; compiled, and not run.
import { Pool } from 'pg';
import { connect, lease, LeaseRefused, LeaseLost, TokenStale } from 'dlock';
const pool = new Pool();
export async function main(): Promise<number> {
  const session = connect(pool);
  await using l = await session.acquire('a', { ttl: '1 min', wait: Infinity });
  await l.transaction(pool, async (client) => { await client.query('SELECT 1'); });
  try { await lease(pool, 'job', async (x) => x.token + (x.signal.aborted ? 1 : 0)); } catch (error) {
    if (error instanceof LeaseRefused) console.log(error.holder);
    if (error instanceof LeaseLost) throw error;
    if (error instanceof TokenStale) throw error;
  }
  for await (const holder of session.watch('a')) if (holder) return holder.token;
  const w = session.worker('q', async (task) => { task.state = 'x'; }, { concurrency: 3 });
  await w.stop({ grace: 100 });
  return lease(pool, 'job', { wait: 3 }, () => 3);
}
