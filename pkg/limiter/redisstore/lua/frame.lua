-- A batch of requests, one after the other, each decided as a whole: limiter.Decide (pkg/limiter/decide.go) again,
-- number for number. A request sees what the ones before it were charged.
--
-- KEYS[i]   the counter of hit i of the batch; a key may occur more than once
-- ARGV[1]   the time in microseconds since the Unix epoch, or '' for Redis's own clock
-- ARGV[2]   the requests, as doubles: how many hits a request has, then for each of its hits
--             policy (1 is the first below), mode (0 enforce, 1 shadow, 2 quota), group, cost n
-- ARGV[3..] the policies that they name, as doubles: the numbers of limiter.Policy.Args, then
--             step, charge_denied (1 none, 2 remaining, 3 full), the largest cost that can ever fit
-- answer    five doubles a hit: allowed (1 or 0), remaining, retry_after, reset_after, wait, in microseconds;
--           retry_after is -1 where no wait helps. Where requests could not be decided: a list of these doubles,
--           zeros for theirs, then for each such request its number, from 1, and why.
--
-- Doubles are little-endian, one after the other in a string: that is one argument to parse, not hundreds.
--
-- The frame is put together from the algorithms that are needed: before this text stand prelude.lua and their
-- files, each of which has set steps[number].

local HIT, ANSWER = '<dddd', '<ddddd'

local now, spare = nil, 0
if ARGV[1] == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  -- Keys expire by Redis's clock, which then says nothing about ours: they are kept a day longer.
  now, spare = tonumber(ARGV[1]), 86400000
end

local policies = {}
for i = 3, #ARGV do
  local count = #ARGV[i] / 8
  local policy = {struct.unpack('<' .. string.rep('d', count), ARGV[i])}
  policy.step, policy.denied, policy.largest = steps[policy[count - 2]], policy[count - 1], policy[count]
  policies[i - 2] = policy
end

-- state[key] is the newest state, false where there is none or it is as new; expires[key] is set where it changed.
local state, found, expires = {}, {}, {}
for from = 1, #KEYS, 1000 do -- unpack has a bound
  local last = min(from + 999, #KEYS)
  for i, v in ipairs(redis.call('MGET', unpack(KEYS, from, last))) do
    local key = KEYS[from + i - 1]
    state[key], found[key] = v, v
  end
end

local function pack(allowed, left, retry, reset, wait)
  return struct.pack(ANSWER, allowed and 1 or 0, left, retry, reset, wait or 0)
end

-- single decides a request of one hit that is to be enforced, as most are.
local function single(key, policy, n)
  reading = key
  local changed, new, allowed, left, retry, reset, wait, linger =
    policy.step(policy, state[key], now, n, TAKE_OR_PENALTY, policy.denied)
  if changed then
    state[key], expires[key] = new, reset + (linger or 0)
  end
  return pack(allowed, left, retry, reset, wait)
end

-- several decides a request of any hits.
local function several(hits)
  local next_state, keep = {}, {} -- of this request
  local function run(hit, charge)
    local from = next_state[hit.key]
    if from == nil then from = state[hit.key] end
    reading = hit.key
    local changed, new, allowed, left, retry, reset, wait, linger =
      hit.policy.step(hit.policy, from, now, hit.n, charge, hit.policy.denied)
    if changed then
      next_state[hit.key], keep[hit.key] = new, reset + (linger or 0)
    end
    return {allowed, left, retry, reset, wait}
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
    next_state, keep = {}, {}
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
        local never = d[3] == NEVER or together > hit.policy.largest
        out[i][3] = never and NEVER or max(out[i][3], d[3])
      end
    end
  end

  for key, new in pairs(next_state) do state[key], expires[key] = new, keep[key] end
  local packed = {}
  for i = 1, #hits do packed[i] = pack(unpack(out[i], 1, 5)) end
  return table.concat(packed)
end

local answers, failures = {}, {}
local at, first, request = 1, 1, 0
while first <= #KEYS do
  request = request + 1
  local count
  count, at = struct.unpack('<d', ARGV[2], at)
  local policy, mode, group, n
  policy, mode, group, n, at = struct.unpack(HIT, ARGV[2], at)
  local decided, answer
  noted, alone = {}, false
  if count == 1 and mode == ENFORCE then
    alone = true
    decided, answer = pcall(single, KEYS[first], policies[policy], n)
  else
    local hits = {}
    for i = 1, count do
      if i > 1 then policy, mode, group, n, at = struct.unpack(HIT, ARGV[2], at) end
      hits[i] = {key = KEYS[first + i - 1], policy = policies[policy], mode = mode, group = group, n = n}
    end
    decided, answer = pcall(several, hits)
  end
  if not decided then
    failures[#failures + 1] = request
    failures[#failures + 1] = type(answer) == 'table' and answer.err or tostring(answer)
    answer = string.rep('\0', 40 * count)
  end
  answers[request] = answer
  first = first + count
end

for key, after in pairs(expires) do
  if state[key] then
    -- The expiry only collects garbage: it is never before the state stops to matter.
    redis.call('SET', key, state[key], 'PX', ceil(after / 1000) + spare)
  elseif found[key] then
    redis.call('DEL', key)
  end
end

if #failures == 0 then return table.concat(answers) end
return {table.concat(answers), unpack(failures)}
