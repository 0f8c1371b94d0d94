-- Reads the counters, plans and policies of the batch, and decides most requests: those whose hits all fit.

-- found[k] is the value of KEYS[k] in Redis, and state[k] the newest state; both are false without a state. after[k] is
-- set if the state changed: the number of microseconds for which the state matters, or KEEPTTL.
local state, after = {}, {}
if #KEYS <= 1000 then -- Lua bounds the number of values that unpack returns
  found = found or call('MGET', unpack(KEYS))
  state = {unpack(found)}
else
  found = {}
  for from = 1, #KEYS, 1000 do
    for i, v in ipairs(call('MGET', unpack(KEYS, from, min(from + 999, #KEYS)))) do
      found[from + i - 1], state[from + i - 1] = v, v
    end
  end
end

local function change(k, new, lasts)
  state[k] = new
  if lasts ~= KEEPTTL or not after[k] then after[k] = lasts end
end

local policies, stamped = {}, false -- stamped: a policy has a reserve, so the answer has the time of the decisions
local function reserve_of(policy) return policy[policy.count - 3] end -- a fifth field would cost each batch 0.1 us
local function policy_at(i)
  local policy = policies[i]
  if not policy then
    local count = #ARGV[i] / 8
    policy = {number = 0, denied = 0, count = count, quick = false, unpack_from('<' .. rep('d', count), ARGV[i])}
    policy.number, policy.denied = policy[count - 2], policy[count - 1]
    stamped = stamped or reserve_of(policy) > 0
    local decides = quick[policy.number]
    policy.quick = decides and decides(unpack(policy))
    policies[i] = policy
  end
  return policy
end

-- A plan has four values for each hit: policy, mode, group and cost. is_plain is true if all hits are enforced and cost
-- more than 0, and is_quick if also all policies have a quick function.
local plans = {}
local function plan_at(i)
  local text, at, is_plain, is_quick = ARGV[i], 1, true, true
  local plan = {count = #text / 32, is_plain = false, is_quick = false, 0, 0, 0, 0} -- room for the first hit
  for j = 1, #text / 8, 4 do
    local policy, mode, group, n
    policy, mode, group, n, at = unpack_from('<dddd', text, at)
    policy = policy_at(policy)
    plan[j], plan[j + 1], plan[j + 2], plan[j + 3] = policy, mode, group, n
    is_plain = is_plain and mode == ENFORCE and n > 0
    is_quick = is_quick and policy.quick
  end
  plan.is_plain, plan.is_quick = is_plain, is_plain and is_quick
  plans[i] = plan
  return plan
end

-- key_index[h] is the index in KEYS of the counter of the batch's hit h. key_index is nil if every index is h.
local key_index
if ARGV[4] ~= '' then
  key_index = {}
  for h = 1, #ARGV[4] / 8 do key_index[h] = unpack_from('<d', ARGV[4], 8 * h - 7) end
end

local results, size = {0, 0, 0, 0, 0, 0, 0, 0}, 0 -- room for four hits
local function answer(fits, left, retry, reset, wait)
  if fits and retry == 0 and wait == 0 then
    results[size + 1], results[size + 2] = left, reset
    size = size + 2
  else
    results[size + 1], results[size + 2] = fits and ADMITTED or DENIED, left
    results[size + 3], results[size + 4], results[size + 5] = retry, reset, wait
    size = size + 5
  end
end

-- refunded[k] is the number of hits that the batch refunds, less the hits that it charges afterwards. If the number is
-- not above 0, as when a process exchanges leased permits, the refunds admit no further request and are not published.
-- Neither is a refund before which the largest cost of a policy with a reserve had room. left is the number of hits that
-- remain after n.
local refunded = {}
local function tally(k, n, policy, left)
  if refunded[k] or (n < 0 and (reserve_of(policy) == 0 or left + n < reserve_of(policy))) then
    refunded[k] = (refunded[k] or 0) - n
  end
end

-- decide_quickly decides a request if its plan is quick, and all its hits fit and have different counters. Otherwise
-- it returns false and has changed no state.
local next_state, lasts, visited = {0, 0, 0, 0}, {0, 0, 0, 0}, {} -- room for four hits
local function decide_quickly(plan, first, request)
  local count, j, at = plan.count, 1, size
  for i = 1, count do
    local k = first + i - 1
    if key_index then
      k = key_index[k]
      if visited[k] == request then return false end
      visited[k] = request
    end
    local new, left, reset, keeps = plan[j].quick(state[k], plan[j + 3])
    if not new then return false end
    next_state[i], lasts[i], results[at + 1], results[at + 2] = new, keeps, left, reset
    j, at = j + 4, at + 2
  end
  size = at
  for i = 1, count do
    local k, keeps = first + i - 1, lasts[i]
    if key_index then k = key_index[k] end
    state[k] = next_state[i]
    if keeps ~= KEEPTTL or not after[k] then after[k] = keeps end -- change(), inlined for speed
    if refunded[k] then tally(k, plan[4 * i]) end
  end
  return true
end

local failures, restarted, cuts, has_charges = {}, {}, {}, false
