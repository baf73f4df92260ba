-- Holds the jobs of the partitions that Hemiola manages, from submission until Hemiola has placed them.
-- Install it beside slurm.conf, with JobSubmitPlugins=lua there, and run: scontrol reconfigure

-- The partitions that Hemiola manages.
local managed = { ["hemiola"] = true }
-- The user ids that may release a held job: root, and the user that Hemiola runs as (the SlurmUser).
local operators = { [0] = true }

-- What `hemiola serve --alive FILE` writes while it acts, and after how many seconds of silence jobs are no longer
-- held; when it is stopped, it writes there what is no number. The controller reads a few bytes per submission; "" holds whether Hemiola lives or not.
local alive_file, silent_s = "/run/hemiola/alive", 60

-- Written when a job comes, for `hemiola serve --wake FILE` to look at once instead of when it is time; "" for nothing.
local wake_file = "/run/hemiola/wake"

local function is_alive()
  if alive_file == "" then return true end
  local file = io.open(alive_file, "r")
  if file == nil then return false end
  local said = tonumber(file:read("*l") or "")
  file:close()
  return said ~= nil and os.time() - said < silent_s
end

local function wake()
  if wake_file == "" then return end
  local file = io.open(wake_file, "w")
  if file == nil then return end  -- then it looks when it is time
  file:write("1")
  file:close()
end

-- Whether a job that asks for "a,b" (or, with nil, for the default partition) could run in a managed one.
local function is_managed(wanted, partitions)
  if wanted == nil then
    for name, partition in pairs(partitions) do
      if partition.flag_default == 1 then wanted = name end
    end
  end
  for name in string.gmatch(wanted or "", "[^,]+") do
    if managed[name] then return true end
  end
  return false
end

local function begins_with(comment, sign)
  return string.sub(comment or "", 1, #sign) == sign
end

-- A comment with what is written before it here, once: users may write another comment, but not one without that.
local function signed(comment, sign)
  return begins_with(comment, sign) and comment or sign .. (comment or "")
end

-- A user's own hold looks like ours to Slurm, so it is marked in the job's comment.
local mark = "hemiola:held-by-its-user "

local function is_marked(comment)
  return begins_with(comment, mark)
end

-- Whether it is to run in a reservation, whose nodes are not Hemiola's to give; Slurm's own record has another word.
local function is_reserved(job)
  return (job.reservation or job.resv_name or "") ~= ""
end

-- A job that names its nodes (--nodelist, --exclude) leaves Hemiola no choice: it is Slurm's. To refuse such jobs
-- instead, return slurm.ERROR where slurm_job_submit marks them.
local naming = "hemiola:names-its-nodes "

local function names_nodes(job)
  return (job.req_nodes or "") ~= "" or (job.exc_nodes or "") ~= ""
end

-- Slurm itself holds a job that it could not launch again and again (MaxBatchRequeue), one that ended in a special exit
-- (RequeueExitHold, requeuehold state=SpecialExit), and one whose reservation is gone. Its user may release it: Hemiola
-- holds it as it looks next.
local slurms_holds = { 2 ^ 11, 2 ^ 12, 2 ^ 21 }

local function is_slurms_to_hold(record)
  for _, flag in ipairs(slurms_holds) do
    if (record.job_state or 0) % (2 * flag) >= flag then return true end
  end
  return false
end

-- Whether it is in the queue: a hold of one that runs comes to nothing.
local function is_pending(record)
  return (record.job_state or 0) % 256 == 0
end

function slurm_job_submit(job, partitions, uid)
  if not is_managed(job.partition, partitions) then return slurm.SUCCESS end
  local ours = is_alive() and not is_reserved(job)
  if ours and names_nodes(job) then
    job.comment = signed(job.comment, naming)
    return slurm.SUCCESS
  end
  if job.priority == 0 then job.comment = signed(job.comment, mark) end
  if not ours then return slurm.SUCCESS end
  job.priority = 0
  wake()
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  if begins_with(record.comment, naming) then
    if job.comment ~= nil then job.comment = signed(job.comment, naming) end
    return slurm.SUCCESS
  end
  if not is_managed(job.partition or record.partition, partitions) then return slurm.SUCCESS end
  local sets_priority = job.priority ~= slurm.NO_VAL and job.priority ~= 0
  local lifts = sets_priority and is_marked(record.comment)
  if lifts then
    local rest = job.comment or record.comment
    if is_marked(rest) then rest = string.sub(rest, #mark + 1) end
    job.comment = rest ~= "" and rest or "hemiola"  -- an empty one would change nothing
  elseif is_marked(record.comment) and job.comment ~= nil then
    job.comment = signed(job.comment, mark)
  end
  if operators[uid] then return slurm.SUCCESS end
  local moves_in = not is_managed(record.partition, partitions)
  local holds = is_pending(record) and (job.priority == 0 or (moves_in and record.priority == 0))
  if holds and not is_marked(record.comment) then
    job.comment = signed(job.comment or record.comment, mark)
  end
  if is_reserved(record) then return slurm.SUCCESS end
  if lifts then  -- from now on only Hemiola holds it, if it is there
    if is_alive() then job.priority = 0 end
    return slurm.SUCCESS
  end
  if sets_priority and (moves_in or record.priority == 0) and not is_slurms_to_hold(record) then
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  end
  if moves_in and is_alive() then job.priority = 0 end
  return slurm.SUCCESS
end

return slurm.SUCCESS
