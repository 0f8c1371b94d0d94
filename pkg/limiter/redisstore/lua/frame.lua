-- One request's hits, decided as a whole: limiter.Decide (pkg/limiter/decide.go) again, number for number.
--
-- KEYS[i]  the counter of hit i; a key may occur twice
-- ARGV[1]  the time in microseconds since the Unix epoch, or '' for Redis's own clock
-- ARGV[2]  how many numbers each hit brings (WIDTH); then for each hit, in order, padded with 0 to WIDTH:
--          step, mode (0 enforce, 1 shadow, 2 quota), group, charge_denied (1 none, 2 remaining, 3 full),
--          cost n, the largest cost that can ever fit, and the policy's numbers as limiter.Policy.Args has them
-- answer   five integers a hit: allowed (1 or 0), remaining, retry_after, reset_after, wait in microseconds;
--          retry_after is -1 where no wait helps
--
-- The frame is put together from the algorithms that a request needs: before this text stand prelude.lua and
-- their files, each of which has set steps[number].

local FIELDS = 6
local width = tonumber(ARGV[2])

local now, spare = nil, 0
if ARGV[1] == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  -- Keys expire by Redis's clock, which then says nothing about ours: they are kept a day longer.
  now, spare = tonumber(ARGV[1]), 86400000
end

-- The state is a string; false where Redis has none. next_state[k] is nil until the request changes key k,
-- and false when its state is as new.
local n_hits = #KEYS
local stored, next_state, keep = {}, {}, {}
if n_hits == 1 then
  stored[KEYS[1]] = redis.call('GET', KEYS[1])
else
  for i, v in ipairs(redis.call('MGET', unpack(KEYS))) do stored[KEYS[i]] = v end
end

local hits = {}
for i = 1, n_hits do
  local at = 2 + (i - 1) * width
  local args = {}
  for j = 1, width - FIELDS do args[j] = tonumber(ARGV[at + FIELDS + j]) end
  hits[i] = {
    key = KEYS[i],
    step = steps[ARGV[at + 1]],
    mode = ARGV[at + 2],
    group = ARGV[at + 3],
    denied = ARGV[at + 4],
    n = tonumber(ARGV[at + 5]),
    largest = tonumber(ARGV[at + 6]),
    args = args,
  }
end

local function run(hit, charge)
  local state = next_state[hit.key]
  if state == nil then state = stored[hit.key] end
  reading = hit.key
  local changed, new, allowed, left, retry, reset, wait, linger = hit.step(hit.args, state, now, hit.n, charge, hit.denied)
  if changed then
    next_state[hit.key], keep[hit.key] = new, reset + (linger or 0)
  end
  return {allowed, left, retry, reset, wait or 0}
end

local out = {}
local enforced, quotas, over = true, {}, {}
for i, hit in ipairs(hits) do
  out[i] = run(hit, hit.mode == SHADOW and TAKE_OR_PENALTY or TAKE_IF_FITS)
  local fits = out[i][1]
  if hit.mode == ENFORCE then
    enforced = enforced and fits
  elseif hit.mode == QUOTA then
    quotas[hit.group] = true
    if not fits then over[hit.group] = true end
  end
end

-- limiter.QuotaDenies: there are quotas, and all of them are over.
local quota_denies = next(quotas) ~= nil
for group in pairs(quotas) do quota_denies = quota_denies and over[group] end

if not enforced or quota_denies then
  next_state = {}
  put_back()
  for i, hit in ipairs(hits) do
    local charge = LOOK
    if hit.mode == SHADOW or hit.n < 0 then
      charge = TAKE_OR_PENALTY
    elseif not out[i][1] and (hit.mode == ENFORCE or (hit.mode == QUOTA and quota_denies)) then
      charge = PENALTY
    end
    local d = run(hit, charge)
    out[i][2], out[i][4], out[i][5] = d[2], d[4], d[5]
    if not out[i][1] and out[i][3] ~= NEVER then
      local together = 0
      for j = 1, i do
        if hits[j].key == hit.key then together = together + max(0, hits[j].n) end
      end
      local never = d[3] == NEVER or together > hit.largest
      out[i][3] = never and NEVER or max(out[i][3], d[3])
    end
  end
end

for key, state in pairs(next_state) do
  if state then
    -- The expiry only collects garbage: it is never before the state stops to matter.
    redis.call('SET', key, state, 'PX', int(ceil(keep[key] / 1000) + spare))
  else
    redis.call('DEL', key)
  end
end

local answer = {}
for i = 1, n_hits do
  local d, at = out[i], (i - 1) * 5
  answer[at + 1] = d[1] and 1 or 0
  for j = 2, 5 do answer[at + j] = d[j] end
end
return answer
