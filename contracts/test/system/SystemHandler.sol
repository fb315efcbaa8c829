// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {CreditBook} from "../../src/libraries/CreditBook.sol";
import {DisputeId, JobId} from "../../src/types/Ids.sol";
import {Ack, Order, Stage} from "../../src/types/Signed.sol";
import {Court} from "../fixtures/Court.sol";
import {Messages} from "../fixtures/Messages.sol";

/// What people do with the whole suite, called by forge at random: a requester that pays, one that
/// never answers, one that disputes everything; six honest miners and two cheats; a matcher that
/// forgets jobs; an auditor; five jurors, one of them a liar. A call that a rule forbids fails; one
/// that panics is remembered.
contract SystemHandler is Court {
    using Messages for *;

    uint256 public constant REQUESTERS = 3;
    uint256 public constant MINERS = 8;
    uint256 public constant CHEATS = 2; // miners 0 and 1
    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;

    /// What a job's lock follows from, beside its counts.
    struct Task {
        JobId id;
        address requester;
        address[] owners; // of the stages
        bytes32 planHash;
        uint256 maxNano;
        bool isSession;
        bytes deal; //      abi.encode(Deal): what was signed
        bytes delivery; //  abi.encode(Delivery), once there are receipts
        uint64 cheatMask; // stages whose results are wrong
        ITaskRegistry.State end;
    }

    struct Hearing {
        DisputeId id;
        bool guilty;
        uint256 task;
    }

    bool public panicked;
    string public broken; // a rule that a call got around
    bool public terminalMoved;
    bool public paidWrongly;
    bool public stakeLeftEarly;
    mapping(string what => uint256) public happened;
    Hearing[] public hearings;
    mapping(address spender => uint256) public paidFor; // by the jobs that a spender opened

    Task[] private _tasks;
    uint256 private _calls;
    uint256 private _touched; // the task that this call is about, plus one
    bool private _stakeLeft; //  by this call
    address private immutable _founder; // the fixture's requester, who only holds a balance here

    constructor() {
        Court.setUp();
        _founder = requester;
        for (uint256 i; i < REQUESTERS; ++i) {
            depositFor(requesterAt(i), 50 * USD);
            vm.prank(requesterAt(i));
            escrow.setSpender(spenderAt(i), uint96(4 * USD), type(uint64).max);
        }
    }

    function setUp() public override {}

    // --- who there is ---

    function keyAt(uint256 i) private pure returns (uint256) {
        return 7000 + i % REQUESTERS;
    }

    function requesterAt(uint256 i) public pure returns (address) {
        return vm.addr(keyAt(i));
    }

    /// A key that the requester lets spend, up to a few jobs' money.
    function spenderAt(uint256 i) public pure returns (address) {
        return vm.addr(8000 + i % REQUESTERS);
    }

    function minerAt(uint256 i) public view returns (address) {
        return minerOwners[i % MINERS];
    }

    function jurorAt(uint256 i) public view returns (address) {
        return jurors[i % JURORS];
    }

    /// Everyone who can own a balance or a credit anywhere. Spenders cannot.
    function accounts() public view returns (address[] memory all) {
        all = new address[](REQUESTERS + MINERS + JURORS + 5);
        uint256 next;
        for (uint256 i; i < REQUESTERS; ++i) {
            all[next++] = requesterAt(i);
        }
        for (uint256 i; i < MINERS; ++i) {
            all[next++] = minerAt(i);
        }
        for (uint256 i; i < JURORS; ++i) {
            all[next++] = jurorAt(i);
        }
        (all[next], all[next + 1], all[next + 2]) = (matcher, treasury, auditor);
        (all[next + 3], all[next + 4]) = (_founder, CreditBook.BURN_ADDRESS);
    }

    function operatorAt(uint256 i) public view returns (address) {
        return vm.addr(operatorKeys[i % MINERS]);
    }

    /// Everyone under whose address Escrow keeps anything. Fees of no matcher are under zero.
    function holders() public view returns (address[] memory all) {
        address[] memory people = accounts();
        all = new address[](people.length + MINERS + 1);
        for (uint256 i; i < people.length; ++i) {
            all[i] = people[i];
        }
        for (uint256 i; i < MINERS; ++i) {
            all[people.length + i] = operatorAt(i);
        }
    }

    function taskCount() external view returns (uint256) {
        return _tasks.length;
    }

    function taskAt(uint256 i) external view returns (JobId id) {
        return _tasks[i].id;
    }

    function jobAt(uint256 i) public view returns (ITaskRegistry.Job memory job) {
        job = tasks.jobOf(_tasks[i].id, _tasks[i].planHash);
        if (job.state == ITaskRegistry.State.None) job = tasks.jobOf(_tasks[i].id, 0);
    }

    /// What the `i`th job has locked: its order's most, until it ends.
    function lockedAt(uint256 i) external view returns (uint256 nano) {
        ITaskRegistry.State state = jobAt(i).state;
        bool ended = state == ITaskRegistry.State.Settled || state == ITaskRegistry.State.Cancelled
            || state == ITaskRegistry.State.Expired;
        return ended ? 0 : _tasks[i].maxNano;
    }

    function hearingCount() external view returns (uint256) {
        return hearings.length;
    }

    function contracts() external view returns (address, address, address, address) {
        return (address(token), address(escrow), address(miners), address(jury));
    }

    // --- acting ---

    function act(string memory what, address caller, address target, bytes memory data)
        private
        returns (bool ok)
    {
        ok = attempt(caller, target, data);
        if (ok) ++happened[what];
    }

    /// No one gets this done; if it is done after all, `rule` is broken.
    function forbid(string memory rule, address caller, address target, bytes memory data)
        private
    {
        if (attempt(caller, target, data)) broken = rule;
        else ++happened[rule];
    }

    function attempt(address caller, address target, bytes memory data) private returns (bool ok) {
        bytes memory answer;
        vm.prank(caller, caller);
        (ok, answer) = target.call(data);
        if (ok) return true;
        if (answer.length >= 4 && bytes4(answer) == bytes4(keccak256("Panic(uint256)"))) {
            panicked = true;
        }
    }

    /// After every move: ends stay ends, and who can be disputed has its stake here or lost it. All
    /// jobs are looked at when stake has left, and every 16th time; else the job it was about.
    modifier observed() {
        (_touched, _stakeLeft) = (0, false);
        _;
        if (_stakeLeft || ++_calls % 16 == 0) {
            for (uint256 i; i < _tasks.length; ++i) {
                observe(i);
            }
        } else if (_touched != 0) {
            observe(_touched - 1);
        }
    }

    function observe(uint256 number) private {
        Task storage task = _tasks[number];
        ITaskRegistry.Job memory job = jobAt(number);
        ITaskRegistry.State state = job.state;
        if (task.end != ITaskRegistry.State.None && state != task.end) terminalMoved = true;
        bool settled = state == ITaskRegistry.State.Settled;
        if (
            settled || state == ITaskRegistry.State.Cancelled
                || state == ITaskRegistry.State.Expired
        ) task.end = state;

        uint256 t = vm.getBlockTimestamp();
        // An abandoned dispute may outlast everybody's stake but that of its own stages.
        bool disputable = (state == ITaskRegistry.State.Matched && t <= job.deadline)
            || ((settled
                    || state == ITaskRegistry.State.Delivered
                    || state == ITaskRegistry.State.Disputed
                    || state == ITaskRegistry.State.Matched)
                && t <= job.finalAt);
        for (uint256 s; s < task.owners.length; ++s) {
            IMinerRegistry.Miner memory m = miners.minerOf(task.owners[s]);
            if (!disputable && m.openDisputes == 0) continue;
            if (uint256(m.stake) + m.leaving == 0 && m.strikes == 0) stakeLeftEarly = true;
        }
    }

    /// Mostly one of the last three: older ones have ended, and are tried now and then.
    function pick(uint256 which) private returns (Task storage) {
        uint256 count = _tasks.length;
        uint256 number =
            which >> 128 & 3 == 0 ? which % count : count - 1 - which % (count < 3 ? count : 3);
        _touched = number + 1;
        return _tasks[number];
    }

    function pickDeal(uint256 which) private returns (Deal memory deal) {
        deal = abi.decode(pick(which).deal, (Deal));
        (requester, requesterKey) = (deal.order.requester, keyOf(deal.order.requester));
    }

    modifier someTask() {
        if (_tasks.length == 0) return;
        _;
    }

    // --- time ---

    function wait(uint256 seconds_, uint256 blocks) external observed {
        skipTime(bound(seconds_, 1, 12 hours));
        skipBlocks(bound(blocks, 1, 4));
    }

    function sleep(uint256 seconds_) public observed {
        skipTime(bound(seconds_, 12 hours, 4 days));
        skipBlocks(300); // hashes are forgotten meanwhile
    }

    // --- jobs begin ---

    function openJob(uint256 who, uint256 start, uint256 stages, uint256 terms) public observed {
        begin(who, start, stages, terms, false);
    }

    function openSession(uint256 who, uint256 start, uint256 stages, uint256 terms)
        public
        observed
    {
        begin(who, start, stages, terms, true);
    }

    function begin(uint256 who, uint256 start, uint256 stages, uint256 terms, bool isSession)
        private
    {
        if (_tasks.length >= 40) return;
        (requester, requesterKey) = (requesterAt(who), keyAt(who));
        Deal memory deal = dealFrom(someOrder(terms, isSession), start, stages);
        if (terms % 4 == 1) deal.orderSig = sign(8000 + who % REQUESTERS, JobId.unwrap(deal.id));
        bool ok;
        if (terms % 3 == 0) {
            fund(requester, address(escrow), unitsOf(maxNanoOf(deal.order)));
            ok = act("open", requester, address(tasks), abi.encodeCall(tasks.open, (deal.order)));
        } else {
            string memory what = isSession
                ? "openSession"
                : terms % 4 == 1 ? "openMatched by a spender" : "openMatched";
            ok = act(what, matcherOf(deal), address(tasks), openCall(deal));
        }
        if (!ok) return;
        Task storage task = _tasks.push();
        _touched = _tasks.length;
        (task.planHash, task.isSession) = (deal.planHash, isSession);
        task.maxNano = maxNanoOf(deal.order);
        task.id = deal.id;
        task.requester = requester;
        for (uint256 i; i < deal.plan.length; ++i) {
            task.owners.push(miners.ownerOf(deal.plan[i].operator));
        }
        task.deal = abi.encode(deal);
    }

    function someOrder(uint256 terms, bool isSession) private returns (Order memory order) {
        order = isSession ? sessionOrder() : newOrder();
        if (terms % 5 == 0) dropMatcher(order);
        if (terms % 7 == 0) order.auditor = address(0);
        order.window = uint32(bound(terms, 0, MAX_WINDOW_SECONDS));
        order.deadline =
            uint64(vm.getBlockTimestamp() + bound(terms >> 32, 1 hours, MAX_JOB_SECONDS));
    }

    function dealFrom(Order memory order, uint256 start, uint256 stages)
        private
        view
        returns (Deal memory deal)
    {
        Stage[] memory plan = evenPlan(bound(stages, 1, MINERS));
        uint256[] memory keys = new uint256[](plan.length);
        for (uint256 i; i < plan.length; ++i) {
            keys[i] = operatorKeys[(start % MINERS + i) % MINERS];
            plan[i].operator = vm.addr(keys[i]);
        }
        deal = dealOf(order, plan);
        deal.keys = keys;
        resign(deal);
    }

    function openCall(Deal memory deal) private view returns (bytes memory) {
        return abi.encodeCall(tasks.openMatched, (deal.order, deal.orderSig, deal.plan));
    }

    /// Who may give the job its pipeline.
    function matcherOf(Deal memory deal) private pure returns (address) {
        return deal.order.matcher == address(0) ? deal.order.requester : deal.order.matcher;
    }

    function matchJob(uint256 which) external someTask observed {
        Deal memory deal = pickDeal(which);
        bytes memory data = abi.encodeCall(tasks.matchJob, (deal.order, deal.plan));
        act("matchJob", matcherOf(deal), address(tasks), data);
    }

    // --- what no one gets done ---

    /// The same order over another plan.
    function otherPlan(Deal memory deal, uint256 start, uint256 stages)
        private
        view
        returns (Deal memory other)
    {
        other = dealFrom(deal.order, start, stages);
        if (other.planHash == deal.planHash) other = dealFrom(deal.order, start + 1, stages);
    }

    function openAgain(uint256 which, uint256 start, uint256 stages) external someTask observed {
        Deal memory deal = pickDeal(which);
        Deal memory other = start >> 128 & 1 == 0 ? deal : otherPlan(deal, start, stages);
        forbid("an order opens once", matcherOf(deal), address(tasks), openCall(other));
        if (stages >> 128 & 3 != 0) return;
        fund(requester, address(escrow), unitsOf(maxNanoOf(deal.order)));
        bytes memory data = abi.encodeCall(tasks.open, (deal.order));
        forbid("an order opens once", requester, address(tasks), data);
    }

    function settleByAnotherPlan(uint256 which, uint256 start, uint256 stages)
        external
        someTask
        observed
    {
        Deal memory deal = pickDeal(which);
        Deal memory other = otherPlan(deal, start, stages);
        string memory rule = "a job is paid by its own plan";
        (Ack memory word, bytes memory sig) = ackFor(deal, start, stages);
        bytes memory data = abi.encodeCall(tasks.settleAck, (deal.order, word, sig, other.plan));
        forbid(rule, matcher, address(tasks), data);
        (word, sig) = newAck(other, word.tokensIn, word.tokensOut);
        data = abi.encodeCall(tasks.settleAck, (deal.order, word, sig, other.plan));
        forbid(rule, matcher, address(tasks), data);
        data = abi.encodeCall(tasks.finalize, (deal.order, other.plan));
        forbid(rule, stranger, address(tasks), data);
    }

    function matchAsAnother(uint256 which, uint256 who) external someTask observed {
        Deal memory deal = pickDeal(which);
        address[] memory all = holders();
        address caller = all[who % all.length];
        if (caller == matcherOf(deal)) return;
        string memory rule = "the order's matcher matches";
        bytes memory data = abi.encodeCall(tasks.matchJob, (deal.order, deal.plan));
        forbid(rule, caller, address(tasks), data);
        deal.order.nonce = type(uint64).max; // no job has used it
        resign(deal);
        forbid(rule, caller, address(tasks), openCall(deal));
    }

    function expireByAnotherPlan(uint256 which, uint256 start, uint256 stages)
        external
        someTask
        observed
    {
        Deal memory deal = pickDeal(which);
        Stage[] memory other = otherPlan(deal, start, stages).plan;
        if (start >> 128 & 1 == 0) {
            // As if it waited for a plan, or had one.
            other = planOf(deal).length == 0 ? deal.plan : new Stage[](0);
        }
        string memory rule = "a job expires by its own plan";
        bytes memory data = abi.encodeCall(tasks.expire, (deal.order, other));
        forbid(rule, stranger, address(tasks), data);
        data = abi.encodeCall(tasks.requestClose, (deal.order, dealOf(deal.order, other).planHash));
        forbid(rule, requester, address(tasks), data);
    }

    function keyOf(address who) private pure returns (uint256) {
        for (uint256 i; i < REQUESTERS; ++i) {
            if (requesterAt(i) == who) return keyAt(i);
        }
        revert("unknown requester");
    }

    function cancel(uint256 which) external someTask observed {
        Deal memory deal = pickDeal(which);
        act("cancel", requester, address(tasks), abi.encodeCall(tasks.cancel, (deal.order)));
    }

    /// The plan by which the job is found: none while it waits for one.
    function planOf(Deal memory deal) private view returns (Stage[] memory) {
        bool matched = tasks.jobOf(deal.id, deal.planHash).state != ITaskRegistry.State.None;
        return matched ? deal.plan : new Stage[](0);
    }

    function expire(uint256 which) public someTask observed {
        Deal memory deal = pickDeal(which);
        settle(
            jobOf(deal).finalAt != 0 ? "expire acknowledged" : "expire",
            deal,
            stranger,
            abi.encodeCall(tasks.expire, (deal.order, planOf(deal)))
        );
    }

    // --- jobs end well ---

    /// Brought by the matcher, a stage, the requester or a stranger.
    ///
    /// INVARIANT under test: counts never fall, and reach what the Ack says.
    function ack(uint256 which, uint256 countIn, uint256 countOut) public someTask observed {
        Deal memory deal = pickDeal(which);
        bool isSession = _tasks[_touched - 1].isSession;
        if (escrow.jobSpenderOf(deal.id) != address(0) && countOut >> 200 & 1 == 1) {
            requesterKey += 1000; // its spender
        }
        address caller = [matcher, deal.plan[0].operator, requester, stranger][which >> 8 & 3];
        ITaskRegistry.Job memory had = jobOf(deal);
        (Ack memory word, bytes memory sig) = ackFor(deal, countIn, countOut);
        bytes memory data = abi.encodeCall(tasks.settleAck, (deal.order, word, sig, deal.plan));
        bool ends = had.state == ITaskRegistry.State.Delivered
            || (caller == deal.order.matcher && !isSession);
        string memory what = ends ? "settleAck" : "acknowledge";
        if (!settle(what, deal, caller, data)) return;
        ITaskRegistry.Job memory job = jobOf(deal);
        if ((job.state == ITaskRegistry.State.Settled) != ends) paidWrongly = true;
        if (job.tokensIn != most(had.tokensIn, word.tokensIn)) paidWrongly = true;
        if (job.tokensOut != most(had.tokensOut, word.tokensOut)) paidWrongly = true;
    }

    function most(uint32 one, uint32 other) private pure returns (uint32) {
        return one > other ? one : other;
    }

    function requestClose(uint256 which) public someTask observed {
        Deal memory deal = abi.decode(pick(which).deal, (Deal));
        address spender = escrow.jobSpenderOf(deal.id);
        address caller = which % 3 == 0 && spender != address(0)
            ? spender
            : which % 3 == 1 ? matcher : deal.order.requester;
        act(
            "requestClose",
            caller,
            address(tasks),
            abi.encodeCall(tasks.requestClose, (deal.order, deal.planHash))
        );
    }

    /// With the delivered counts, if there are such.
    function ackFor(Deal memory deal, uint256 countIn, uint256 countOut)
        private
        view
        returns (Ack memory, bytes memory)
    {
        ITaskRegistry.Job memory job = jobOf(deal);
        if (job.state == ITaskRegistry.State.Delivered) {
            return newAck(deal, job.tokensIn, job.tokensOut);
        }
        return newAck(
            deal,
            uint32(bound(countIn, 0, deal.order.maxTokensIn)),
            uint32(bound(countOut, 0, deal.order.maxTokensOut))
        );
    }

    function deliver(uint256 which, uint256 cheating) public someTask observed {
        Task storage task = pick(which);
        Deal memory deal = abi.decode(task.deal, (Deal));
        if (task.delivery.length == 0) makeReceipts(task, deal, cheating);
        Delivery memory delivery = abi.decode(task.delivery, (Delivery));
        bytes memory data = abi.encodeCall(
            tasks.deliver, (deal.order, deal.plan, delivery.receipts, delivery.sigs)
        );
        act("deliver", stranger, address(tasks), data);
    }

    function makeReceipts(Task storage task, Deal memory deal, uint256 cheating) private {
        task.delivery = abi.encode(newDelivery(deal, IN, OUT));
        for (uint256 s; s < deal.plan.length; ++s) {
            if (isCheat(deal, s) && cheating >> s & 1 == 1) task.cheatMask |= uint64(1 << s);
        }
    }

    function isCheat(Deal memory deal, uint256 stage) private view returns (bool) {
        for (uint256 i; i < CHEATS; ++i) {
            if (miners.ownerOf(deal.plan[stage].operator) == minerAt(i)) return true;
        }
        return false;
    }

    function finalize(uint256 which) external someTask observed {
        Deal memory deal = abi.decode(pick(which).deal, (Deal));
        uint256 finalAt = jobOf(deal).finalAt;
        if (which >> 130 & 1 == 1 && finalAt >= vm.getBlockTimestamp()) vm.warp(finalAt + 1);
        settle("finalize", deal, stranger, abi.encodeCall(tasks.finalize, (deal.order, deal.plan)));
    }

    /// INVARIANT under test: when a job ends, stages not at fault get their pay, and the requester
    /// the rest but for the opening fee; until then nobody gets anything.
    function settle(string memory what, Deal memory deal, address caller, bytes memory data)
        private
        returns (bool)
    {
        uint256 credits = creditsOf(deal);
        uint256 balance = balanceNano(deal.order.requester);
        if (!act(what, caller, address(tasks), data)) return false;
        credits = creditsOf(deal) - credits;
        balance = balanceNano(deal.order.requester) - balance;
        ITaskRegistry.Job memory job = jobOf(deal);
        (uint256 earned, uint256 spent) = (0, 0);
        bool ended =
            job.state == ITaskRegistry.State.Settled || job.state == ITaskRegistry.State.Expired;
        if (ended) (earned, spent) = due(deal, job);
        uint256 refunded = ended ? maxNanoOf(deal.order) - spent : 0;
        if (credits != earned || balance != refunded) paidWrongly = true;
        paidFor[escrow.jobSpenderOf(deal.id)] += spent;
        return true;
    }

    function due(Deal memory deal, ITaskRegistry.Job memory job)
        private
        view
        returns (uint256 earned, uint256 spent)
    {
        (uint256[] memory gross, uint256[] memory pay,,) =
            tasks.split(deal.order, deal.plan, job.tokensIn, job.tokensOut);
        bool matched = tasks.jobOf(deal.id, deal.planHash).state != ITaskRegistry.State.None;
        if (matched) spent = openingNano(deal.order);
        for (uint256 s; s < pay.length; ++s) {
            if (job.faultMask >> s & 1 == 1) continue;
            earned += pay[s];
            spent += gross[s];
        }
    }

    function creditsOf(Deal memory deal) private view returns (uint256 total) {
        for (uint256 s; s < deal.plan.length; ++s) {
            total += escrow.nanoOf(deal.plan[s].operator).earned;
        }
    }

    // --- guilt ---

    function disputeStage(uint256 which, uint256 stage, uint256 who) public someTask observed {
        Task storage task = pick(which);
        Deal memory deal = abi.decode(task.deal, (Deal));
        if (task.delivery.length == 0) makeReceipts(task, deal, stage >> 8);
        stage = stage >> 100 & 1 == 1 ? suspect(task, deal) : stage % deal.plan.length;
        Delivery memory delivery = abi.decode(task.delivery, (Delivery));
        address challenger = who % 2 == 1 ? auditor : deal.order.requester;
        fund(challenger, address(jury), uint256(BOND) + FEE);
        bytes memory data = abi.encodeCall(
            tasks.dispute,
            (
                deal.order,
                deal.plan,
                delivery.receipts[stage],
                delivery.sigs[stage],
                noDelegation(),
                ""
            )
        );
        if (!act("dispute", challenger, address(tasks), data)) return;
        hearings.push(
            Hearing(
                disputeIdOf(
                    deal,
                    delivery,
                    stage,
                    who % 2 == 1 ? IArbitrator.Right.Auditor : IArbitrator.Right.Requester
                ),
                task.cheatMask >> stage & 1 == 1,
                _touched - 1
            )
        );
    }

    /// What an auditor that re-ran the job would name: the first cheating stage, or else the first.
    function suspect(Task storage task, Deal memory deal) private view returns (uint256) {
        for (uint256 s; s < deal.plan.length; ++s) {
            if (task.cheatMask >> s & 1 == 1) return s;
        }
        return 0;
    }

    /// One step of a hearing; who sleeps is up to the bits of `course`.
    function hear(uint256 which, uint256 course) public observed {
        if (hearings.length == 0) return;
        Hearing memory h = hearings[which % hearings.length];
        _touched = h.task + 1;
        IJuryArbitrator.Phase phase = jury.disputeOf(h.id).phase;
        if (phase == IJuryArbitrator.Phase.Opened) {
            skipBlocks(3);
            act("draw", stranger, address(jury), abi.encodeCall(jury.draw, (h.id)));
        } else if (phase == IJuryArbitrator.Phase.Committing) {
            vote(h, course, false);
            if (course >> 64 & 1 == 1) skipTime(4 hours + 1);
            act("advance", stranger, address(jury), abi.encodeCall(jury.advance, (h.id)));
        } else if (phase == IJuryArbitrator.Phase.Revealing) {
            vote(h, course, true);
            if (course >> 64 & 1 == 1) skipTime(2 hours + 1);
            act("advance", stranger, address(jury), abi.encodeCall(jury.advance, (h.id)));
        } else if (phase == IJuryArbitrator.Phase.Ruled) {
            if (course >> 64 & 1 == 1) skipTime(1 hours);
            if (act("execute", stranger, address(jury), abi.encodeCall(jury.execute, (h.id)))) {
                if (jury.disputeOf(h.id).status == IArbitrator.Status.Fault) {
                    ++happened["ruled fault"];
                }
                if (jury.disputeOf(h.id).status == IArbitrator.Status.NoFault) {
                    ++happened["ruled no fault"];
                }
                if (jury.disputeOf(h.id).status == IArbitrator.Status.NoRuling) {
                    ++happened["no ruling"];
                }
            }
        }
    }

    function hearToTheEnd(uint256 which, uint256 course) external {
        for (uint256 i; i < 4; ++i) {
            hear(which, course >> (i * 8));
        }
    }

    /// Honest jurors say what is so; juror 0 the contrary.
    function vote(Hearing memory h, uint256 course, bool reveals) private {
        address[] memory panel = jury.panelOf(h.id);
        for (uint256 i; i < panel.length; ++i) {
            if (course >> (2 * i) & 3 == 3) continue; // asleep
            bool saysFault = panel[i] == jurorAt(0) ? !h.guilty : h.guilty;
            IJuryArbitrator.Vote word =
                saysFault ? IJuryArbitrator.Vote.Fault : IJuryArbitrator.Vote.NoFault;
            bytes32 hash = jury.commitmentHash(h.id, 0, panel[i], word, "evidence", "salt");
            bytes memory data = reveals
                ? abi.encodeCall(jury.revealVote, (h.id, word, "evidence", "salt"))
                : abi.encodeCall(jury.commitVote, (h.id, hash));
            act(reveals ? "reveal" : "commit", panel[i], address(jury), data);
        }
    }

    /// A cheat signs two stories; anyone brings them.
    function equivocate(uint256 which, uint256 stage) external someTask observed {
        Deal memory deal = abi.decode(pick(which).deal, (Deal));
        stage %= deal.plan.length;
        if (!isCheat(deal, stage)) return;
        Contradiction memory c = contradiction(deal, stage);
        bytes memory data =
            abi.encodeCall(desk.equivocation, (deal.order, deal.plan, c.one, c.other));
        act("equivocation", stranger, address(desk), data);
    }

    // --- a job as it goes, so that deep states are common ---

    function runJob(uint256 who, uint256 start, uint256 stages, uint256 course) external {
        uint256 before = _tasks.length;
        openJob(who, start, stages, course | 1);
        if (_tasks.length == before) return;
        uint256 last = (uint256(1) << 128) + 2; // to `pick`, divisible by 1, 2 and 3
        deliver(last, course >> 8);
        if (course >> 16 & 1 == 1) disputeStage(last, course >> 17, course >> 25);
    }

    /// As `runJob`, of a session that time ends.
    function runSession(uint256 who, uint256 start, uint256 stages, uint256 course) external {
        uint256 before = _tasks.length;
        openSession(who, start, stages, (course >> 1) / 3 * 3 + 1); // matched at once
        if (_tasks.length == before) return;
        uint256 last = (uint256(1) << 128) + 2; // as in `runJob`
        ack(last, course >> 8, course >> 16);
        if (course >> 24 & 1 == 1) requestClose(last);
        if (course >> 25 & 1 == 1) return;
        sleep(course >> 32);
        expire(last);
    }

    // --- requesters' money ---

    function deposit(uint256 who, uint256 amount) external observed {
        amount = bound(amount, 1, 10 * USD);
        fund(requesterAt(who), address(escrow), amount);
        act("deposit", requesterAt(who), address(escrow), abi.encodeCall(escrow.deposit, (amount)));
    }

    function requestWithdraw(uint256 who, uint256 amount) external observed {
        amount = bound(amount, 0, escrow.balanceOf(requesterAt(who)) / 4);
        act(
            "requestWithdraw",
            requesterAt(who),
            address(escrow),
            abi.encodeCall(escrow.requestWithdraw, (amount))
        );
    }

    function withdraw(uint256 who) external observed {
        act("withdraw", requesterAt(who), address(escrow), abi.encodeCall(escrow.withdraw, ()));
    }

    function withdrawCredits(uint256 who) external observed {
        address[] memory all = accounts();
        address account = all[who % all.length];
        act("withdrawCredit", account, address(miners), abi.encodeCall(miners.withdrawCredit, ()));
        act("withdrawCredit", account, address(jury), abi.encodeCall(jury.withdrawCredit, ()));
    }

    /// Anyone sends pay to the owners of two operators, or of what is none.
    ///
    /// INVARIANT under test: never fails, and all whole units arrive, once.
    function collect(uint256 who, uint256 other) external observed {
        address[] memory operators = new address[](3);
        (operators[0], operators[1]) = (operatorAt(who), operatorAt(other));
        operators[2] = who >> 128 & 1 == 0 ? stranger : address(uint160(other));
        uint256 due_ = escrow.earnedOf(operators[0]);
        if (operators[1] != operators[0]) due_ += escrow.earnedOf(operators[1]);
        uint256 had = token.balanceOf(minerAt(who)) + token.balanceOf(minerAt(other));
        bytes memory data = abi.encodeCall(escrow.collect, (operators));
        if (!act(due_ == 0 ? "collect nothing" : "collect", stranger, address(escrow), data)) {
            broken = "pay can be collected";
        }
        uint256 have = token.balanceOf(minerAt(who)) + token.balanceOf(minerAt(other));
        uint256 times = operators[1] == operators[0] ? 2 : 1; // one owner, counted twice
        if (have - had != times * due_) paidWrongly = true;
    }

    /// INVARIANT under test: never fails, and all whole units arrive, once.
    function collectFees(uint256 who) external observed {
        address[] memory matchers = new address[](3);
        (matchers[0], matchers[1]) = (matcher, who % 2 == 0 ? address(0) : matcher);
        matchers[2] = stranger;
        (uint256 fee, uint256 cut) = escrow.feesOf(matcher);
        if (who % 2 == 0) {
            (, uint256 more) = escrow.feesOf(address(0));
            cut += more;
        }
        uint256 hadFee = token.balanceOf(matcher);
        uint256 hadCut = token.balanceOf(treasury);
        bytes memory data = abi.encodeCall(escrow.collectFees, (matchers));
        if (!act(fee == 0 ? "collect no fee" : "collectFees", stranger, address(escrow), data)) {
            broken = "fees can be collected";
        }
        if (token.balanceOf(matcher) - hadFee != fee) paidWrongly = true;
        if (token.balanceOf(treasury) - hadCut != cut) paidWrongly = true;
    }

    // --- miners come and go ---

    function requestExit(uint256 who, uint256 part) external observed {
        uint256 stake = miners.minerOf(minerAt(who)).stake;
        bytes memory data = abi.encodeCall(miners.requestExit, (part % 2 == 0 ? stake : stake / 2));
        act("requestExit", minerAt(who), address(miners), data);
    }

    function cancelExit(uint256 who) external observed {
        act("cancelExit", minerAt(who), address(miners), abi.encodeCall(miners.cancelExit, ()));
    }

    function withdrawStake(uint256 who) external observed {
        uint256 leaveAt = miners.minerOf(minerAt(who)).leaveAt;
        if (who >> 128 & 3 == 0 && leaveAt > vm.getBlockTimestamp()) vm.warp(leaveAt);
        bytes memory data = abi.encodeCall(miners.withdraw, ());
        _stakeLeft = act("withdrawStake", minerAt(who), address(miners), data);
    }

    function recover(uint256 who) external observed {
        address owner = minerAt(who % CHEATS); // honest ones have nothing to recover from
        IMinerRegistry.Miner memory m = miners.minerOf(owner);
        if (m.state != IMinerRegistry.State.Active) return;
        if (m.stake < MIN_STAKE) {
            fund(owner, address(miners), MIN_STAKE);
            act("addStake", owner, address(miners), abi.encodeCall(miners.addStake, (MIN_STAKE)));
        }
        if (who >> 128 & 3 == 0 && m.jailUntil > vm.getBlockTimestamp()) vm.warp(m.jailUntil);
        act("unjail", owner, address(miners), abi.encodeCall(miners.unjail, ()));
    }

    // --- the end: all clocks run out, strangers end everything, owners take what is theirs ---

    /// Reverts if anyone or anything is stuck.
    function drain() external {
        for (uint256 i; i < hearings.length; ++i) {
            endDispute(hearings[i].id);
        }
        skipTime(uint256(MAX_JOB_SECONDS) + MAX_WINDOW_SECONDS + CLOSE_DELAY_SECONDS + 5 days);
        vm.startPrank(stranger);
        for (uint256 i; i < _tasks.length; ++i) {
            Deal memory deal = abi.decode(_tasks[i].deal, (Deal));
            ITaskRegistry.State state = jobOf(deal).state;
            if (state == ITaskRegistry.State.Open || state == ITaskRegistry.State.Matched) {
                tasks.expire(deal.order, planOf(deal));
            }
            if (state == ITaskRegistry.State.Delivered) tasks.finalize(deal.order, deal.plan);
        }
        vm.stopPrank();
        leaveAll();
        takeAll();
    }

    function leaveAll() private {
        for (uint256 i; i < MINERS; ++i) {
            IMinerRegistry.Miner memory m = miners.minerOf(minerAt(i));
            if (m.state != IMinerRegistry.State.Active) continue;
            if (m.stake < MIN_STAKE) {
                // To leave jail as an Active miner it must be able to work again.
                fund(minerAt(i), address(miners), MIN_STAKE);
                vm.prank(minerAt(i));
                miners.addStake(MIN_STAKE);
            }
            uint256 stake = miners.minerOf(minerAt(i)).stake;
            vm.prank(minerAt(i));
            miners.requestExit(stake);
        }
        for (uint256 i; i < JURORS; ++i) {
            uint256 stake = jury.jurorOf(jurorAt(i)).stake;
            if (stake == 0) continue;
            vm.prank(jurorAt(i));
            jury.requestJurorExit(stake);
        }
        skipTime(UNBOND_SECONDS + 3 days);
        for (uint256 i; i < MINERS; ++i) {
            IMinerRegistry.Miner memory m = miners.minerOf(minerAt(i));
            vm.startPrank(minerAt(i));
            if (m.jailUntil != 0 && m.state == IMinerRegistry.State.Cooldown) miners.unjail();
            if (m.state == IMinerRegistry.State.Cooldown) miners.withdraw();
            vm.stopPrank();
            miners.serve(minerAt(i), type(uint256).max);
        }
        for (uint256 i; i < JURORS; ++i) {
            if (jury.jurorOf(jurorAt(i)).leaving == 0) continue;
            vm.prank(jurorAt(i));
            jury.withdrawJuror();
        }
    }

    function takeAll() private {
        address[] memory all = accounts();
        for (uint256 i; i < all.length; ++i) {
            vm.startPrank(all[i]);
            uint256 units = escrow.balanceOf(all[i]);
            if (units != 0) escrow.requestWithdraw(units);
            vm.stopPrank();
        }
        skipTime(WITHDRAW_DELAY_SECONDS);
        escrow.collect(holders());
        escrow.collectFees(holders());
        for (uint256 i; i < all.length; ++i) {
            vm.startPrank(all[i]);
            if (escrow.thawOf(all[i]).amount != 0) escrow.withdraw();
            if (miners.creditOf(all[i]) != 0) miners.withdrawCredit();
            if (jury.creditOf(all[i]) != 0) jury.withdrawCredit();
            vm.stopPrank();
        }
    }
}
