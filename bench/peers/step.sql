-- The step in PostgreSQL, as people build it: tables, and one function that does everything of the commit.

-- A table of jobs; what takes them locks their rows with SKIP LOCKED and deletes them at the commit.
create table jobs (
  id bigint generated always as identity primary key,
  lane int not null,
  txid text not null,
  payload text not null);
create unique index on jobs (txid);
create index on jobs (lane, id);

-- An append-only log with a cursor and a lease for each lane.
create table log (
  lane int not null,
  place bigint not null,
  txid text not null,
  payload text not null,
  primary key (lane, place));
create unique index on log (txid);
create table cursors (
  lane int primary key,
  place bigint not null default 0,
  lease bigint not null default 0,
  lease_until timestamptz not null default '-infinity') with (fillfactor = 50);

-- Outputs, deduplicated by their id; state by key; markers.
create table outputs (
  id bigint generated always as identity primary key,
  lane int not null,
  txid text not null,
  payload text not null);
create unique index on outputs (txid);
create index on outputs (lane, id);
create table kv (
  key text primary key,
  value text not null,
  version bigint not null default 1) with (fillfactor = 70);
create table once (
  key text primary key,
  until timestamptz not null);

-- What both variants write besides the acknowledgement. The marker is named by the first input.
create function step_write(at_lane int, txids text[], payloads text[], at_key text, new_value text) returns void language plpgsql as $$
begin
  insert into once values (txids[1], now() + interval '1 hour') on conflict do nothing;
  if not found then raise exception 'once: the marker is there'; end if;
  insert into outputs (lane, txid, payload) select at_lane, t, p from unnest(txids, payloads) as u (t, p) on conflict do nothing;
  insert into kv (key, value) values (at_key, new_value)
    on conflict (key) do update set value = excluded.value, version = kv.version + 1;
end $$;

-- Inside the transaction that holds the rows' locks.
create function step_rows(at_lane int, ids bigint[], txids text[], payloads text[], at_key text, new_value text) returns void language plpgsql as $$
declare n int;
begin
  delete from jobs where id = any (ids);
  get diagnostics n = row_count;
  if n <> cardinality(ids) then raise exception 'rejected_ack'; end if;
  perform step_write(at_lane, txids, payloads, at_key, new_value);
end $$;

-- A lease, committed before the work as a broker does. Its commit does not wait for the disk: a lease that a crash loses does no harm.
create function lease_take(at_lane int, most int, new_lease bigint, out top bigint, out txids text[], out payloads text) language plpgsql as $$
declare since bigint;
begin
  perform set_config('synchronous_commit', 'off', true);
  update cursors set lease = new_lease, lease_until = clock_timestamp() + interval '60 s'
    where lane = at_lane and lease_until < clock_timestamp() returning place into since;
  if not found then raise exception 'leased'; end if;
  select max(taken.place), array_agg(taken.txid order by taken.place), string_agg(taken.payload, '' order by taken.place)
    into top, txids, payloads
    from (select l.place, l.txid, l.payload from log l where l.lane = at_lane and l.place > since order by l.place limit most) taken;
end $$;

create function step_lease(at_lane int, held bigint, top bigint, txids text[], payloads text[], at_key text, new_value text) returns void language plpgsql as $$
begin
  update cursors set place = top, lease = 0, lease_until = '-infinity'
    where lane = at_lane and lease = held and lease_until > clock_timestamp();
  if not found then raise exception 'rejected_ack'; end if;
  perform step_write(at_lane, txids, payloads, at_key, new_value);
end $$;
