package sm

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// broadcast is the IPv4 broadcast group of the default partition, which DefaultPartitions creates (RFC 4391, section
// 4).
var broadcast = Group{MGID: mgid("ff12:401b:ffff::ffff:ffff"), PKey: 0xffff, Scope: 2}

// private is a group that a test creates with a join.
var private = Group{MGID: mgid("ff12:401b:ffff::1"), PKey: 0xffff, QKey: 0xb1b, MTU: 4, Rate: 7, Scope: 2}

// A host that joins a group at OpenSM gets the group's packets, and one that has not joined or has left does not. The
// members are those in the table that OpenSM writes, which has no entry for a group of one.
func TestMembershipsDecide(t *testing.T) {
	s := Start(t, Spec{Hosts: 3})
	hosts := []*Host{s.NewHost(0), s.NewHost(1), s.NewHost(2)}
	g := s.askOverWire(hosts[0], 0, methodSet, private)
	if !ibwire.IsMulticast(g.MLID) || g.QKey != private.QKey || g.MTU != private.MTU {
		t.Fatalf("joined %+v, want a group with an MLID and the Q_Key and MTU of %+v", g, private)
	}
	s.Join(1, broadcast) // another group
	s.Join(2, private)
	s.WaitMembers(g.MLID, 0, 2)

	s.sendGroup(hosts[0], 0, &g, "to members")
	if got := hosts[2].Receive(); string(got.Payload) != "to members" || got.DGID != g.MGID || got.SLID != s.Port(0).LID {
		t.Errorf("host 2 received %+v", got)
	}
	s.Leave(2, g)
	s.WaitMembers(g.MLID)
	s.sendGroup(hosts[0], 0, &g, "to no one")
	s.sendUnicast(hosts[0], 0, 1, "afterwards")
	s.sendUnicast(hosts[0], 0, 2, "afterwards")
	for i, h := range hosts[1:] {
		if got := h.Receive(); string(got.Payload) != "afterwards" {
			t.Errorf("host %d received %q, want the packet sent to it afterwards", i+1, got.Payload)
		}
	}
	if c := s.Counters(0); c.Drops[DropNoMember] != 1 || c.Sent != 5 || c.PKeys[0xffff] != 5 || c.Requests != 1 || c.Answers != 1 {
		t.Errorf("counters of host 0: %+v, want 5 packets sent, 1 of them a request, 1 without a member", c)
	}
	if c := s.Counters(2); c.Received != 2 || c.Multicast != 1 {
		t.Errorf("counters of host 2: %+v, want 2 packets received, 1 of them to a group", c)
	}
}

// askOverWire joins a group by packets on the wire, with a transaction ID whose upper bits must survive.
func (s *Subnet) askOverWire(h *Host, i int, method byte, g Group) Group {
	s.tb.Helper()
	const tid = 0xfedc_0000_0000_0001
	port, mad := s.Port(i), joinRequest(method, &g, s.GID(i))
	setTID(mad, tid)
	h.Send(&ibwire.Packet{
		SLID: port.LID, DLID: port.SMLID, PKey: 0xffff, DestQPN: qpGeneral, SrcQPN: 77, QKey: qkeyGS, Payload: mad,
	})
	p := h.Receive()
	if len(p.Payload) != madLen || tidOf(p.Payload) != tid || p.DestQPN != 77 || p.SrcQPN != qpGeneral || p.DLID != port.LID || p.SLID != port.SMLID {
		s.tb.Fatalf("answer %+v, want one to transaction %#x of QP 77", p, uint64(tid))
	}
	if statusOf(p.Payload) != 0 || p.Payload[offMethod] != responseMethod(method) {
		s.tb.Fatalf("answer with method %#x and status %#x", p.Payload[offMethod], statusOf(p.Payload))
	}
	return parseGroup(p.Payload)
}

func (s *Subnet) sendGroup(h *Host, i int, g *Group, text string) {
	s.tb.Helper()
	h.Send(&ibwire.Packet{
		SLID: s.Port(i).LID, DLID: g.MLID, Global: true, SGID: s.GID(i), DGID: g.MGID, PKey: g.PKey,
		DestQPN: hca.QPNMulticast, SrcQPN: 77, QKey: g.QKey, Payload: []byte(text),
	})
}

func (s *Subnet) sendUnicast(h *Host, from, to int, text string) {
	s.tb.Helper()
	h.Send(&ibwire.Packet{SLID: s.Port(from).LID, DLID: s.Port(to).LID, PKey: 0xffff, DestQPN: 78, SrcQPN: 77, QKey: 1, Payload: []byte(text)})
}

// A host learns of its port: all events of a port that comes up, and later those that follow from changes.
func TestPortFollowsTheSubnetManager(t *testing.T) {
	s := Start(t, Spec{Hosts: 2})
	h := s.NewHost(0)
	h.Hello()
	// Until the switch has read that, a poll may tell the host of the port, and then it tells it all again.
	s.eventually("the switch has told the host of its port", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		to := s.hosts[0]
		return to.counters.Hellos == 1 && to.told == to.control && to.told.State == hca.PortActive
	})
	const all = ibwire.PortActive | ibwire.LIDChange | ibwire.SMChange | ibwire.PKeyChange | ibwire.GIDChange
	up := s.awaitControl(h, func(c ibwire.Control) bool { return c.State == hca.PortActive && c.Events == all })
	if up.LID == 0 || up.SMLID == 0 || up.LID == up.SMLID || up.MTU != defaultMTU || up.Prefix != 0xfe80<<48 || !slices.Contains(up.PKeys[:], 0xffff) {
		t.Fatalf("port %+v, want LIDs, MTU 2048, the default prefix and partition", up)
	}
	s.Unlink(0)
	if down := s.awaitControl(h, func(c ibwire.Control) bool { return c.State != hca.PortActive }); down.Events&ibwire.PortErr == 0 {
		t.Errorf("events %#x of the port's failure, want %#x", down.Events, ibwire.PortErr)
	}
	s.sendUnicast(h, 0, 1, "lost")
	s.Relink(0)
	if again := s.awaitControl(h, func(c ibwire.Control) bool { return c.State == hca.PortActive }); again.LID != up.LID || again.Events&ibwire.PortActive == 0 {
		t.Errorf("after the failure: LID %d, events %#x, want LID %d and %#x", again.LID, again.Events, up.LID, ibwire.PortActive)
	}
	if c := s.Counters(0); c.Drops[DropPortDown] != 1 {
		t.Errorf("counters %+v, want one packet dropped because the port was down", c)
	}
	s.ChangeLID(0, up.LID+33)
	if moved := s.awaitControl(h, func(c ibwire.Control) bool { return c.LID == up.LID+33 }); moved.Events != ibwire.LIDChange {
		t.Errorf("events of a new LID: %#x, want %#x", moved.Events, ibwire.LIDChange)
	}
	s.Raise(0, ibwire.ClientReregister)
	s.awaitControl(h, func(c ibwire.Control) bool { return c.Events&ibwire.ClientReregister != 0 })
}

// A closed switch has no goroutine, and a second Close does nothing.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	s := Start(t, Spec{Hosts: 2})
	s.NewHost(0)
	programs := runtime.NumGoroutine()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The programs and the host have goroutines still; the switch has had three for each host and one to poll.
	s.eventually("the switch has no goroutine", func() bool { return runtime.NumGoroutine() <= programs-7 })
	s.ibsim.kill()
	s.opensm.kill()
	s.eventually("no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+1 }) // that of the host
}

// awaitControl waits for a control frame that satisfies a condition.
func (s *Subnet) awaitControl(h *Host, ok func(ibwire.Control) bool) ibwire.Control {
	s.tb.Helper()
	for {
		if c := h.Control(); ok(c) {
			return c
		}
	}
}

// A restarted subnet manager has forgotten the members: one of them cannot leave. It leaves the switch's table as it
// is, so packets still pass, until hosts join again.
func TestRestartedSubnetManager(t *testing.T) {
	s := Start(t, Spec{Hosts: 3})
	s.Join(0, private)
	g := s.Join(1, private)
	s.WaitMembers(g.MLID, 0, 1)
	s.RestartSM(false)
	s.WaitSM()
	s.eventually("the subnet manager has forgotten host 0", func() bool {
		_, err := s.group(0, joinRequest(methodDelete, &g, s.GID(0)))
		var status statusError
		return errors.As(err, &status) && status == saInvalid
	})
	if members := s.Members(g.MLID); !slices.Equal(members, []int{0, 1}) {
		t.Errorf("members %v in the switch's table after the restart, want 0 and 1", members)
	}
	s.Join(0, private)
	g = s.Join(2, private)
	s.WaitMembers(g.MLID, 0, 2)
}

// A subnet manager that starts without its memory replaces LIDs that it has not assigned. The hosts learn of the new
// ones, and reach it.
func TestForgottenLIDs(t *testing.T) {
	s := Start(t, Spec{Hosts: 2})
	wrong := s.Port(1).LID + 40
	s.ChangeLID(1, wrong)
	s.RestartSM(true)
	s.eventually("host 1 joins with a LID of the new subnet manager", func() bool {
		_, err := s.group(1, joinRequest(methodSet, &broadcast, s.GID(1)))
		return err == nil && s.Port(1).LID != wrong
	})
}

// With an LMC of 1 a port has two LIDs. Both reach it, and its packets come from either, except for those to QP1 and to
// groups. The switch counts them, and the SL and the partition of each packet.
func TestPathBits(t *testing.T) {
	s := Start(t, Spec{Hosts: 2, Options: "lmc 1\n"})
	hosts := []*Host{s.NewHost(0), s.NewHost(1)}
	from, to := s.Port(0), s.Port(1)
	if from.LMC != 1 || to.LMC != 1 || from.LID&1 != 0 || to.LID&1 != 0 {
		t.Fatalf("LIDs %d and %d with LMCs %d and %d, want even ones with 1", from.LID, to.LID, from.LMC, to.LMC)
	}
	s.SetPathBits(0, 3) // the LMC has room for one bit
	s.Join(1, private)
	g := s.askOverWire(hosts[0], 0, methodSet, private)
	s.WaitMembers(g.MLID, 0, 1)
	s.sendGroup(hosts[0], 0, &g, "to members")
	if got := hosts[1].Receive(); got.SLID != from.LID {
		t.Errorf("SLID %d of a packet to a group, want %d", got.SLID, from.LID)
	}
	for _, dlid := range []uint16{to.LID, to.LID + 1} {
		hosts[0].Send(&ibwire.Packet{SLID: from.LID, DLID: dlid, SL: 3, PKey: 0x8001, DestQPN: 78, SrcQPN: 77, QKey: 1})
		if got := hosts[1].Receive(); got.SLID != from.LID+1 || got.DLID != dlid || got.SL != 3 {
			t.Errorf("received %+v, want a packet from LID %d to %d with SL 3", got, from.LID+1, dlid)
		}
	}
	want := map[Lane]int{{0xffff, 0}: 1, {0x8001, 3}: 2}
	if c := s.Counters(0); !maps.Equal(c.Lanes, want) {
		t.Errorf("packets by P_Key and SL: %v, want %v", c.Lanes, want)
	}
	if c := s.Counters(1); c.PathBits != 2 || c.Received != 3 {
		t.Errorf("counters of host 1: %+v, want 3 packets received, 2 of them with path bits", c)
	}
}

// A LID that a port gets while no subnet manager runs is its LID for good, also by the switch's table.
func TestMoveLID(t *testing.T) {
	s := Start(t, Spec{Hosts: 2})
	hosts := []*Host{s.NewHost(0), s.NewHost(1)}
	others := s.Port(0).LID
	s.Join(1, private)
	lid := s.Port(1).LID + 33
	s.MoveLID(1, lid)
	s.Join(0, private)
	g := s.Join(1, private)
	s.WaitMembers(g.MLID, 0, 1) // the subnet manager has configured the switch
	if s.Port(0).LID != others || s.Port(1).LID != lid {
		t.Fatalf("LIDs %d and %d, want %d and %d", s.Port(0).LID, s.Port(1).LID, others, lid)
	}
	s.sendUnicast(hosts[0], 0, 1, "to the new LID")
	if got := hosts[1].Receive(); got.DLID != lid {
		t.Errorf("received %+v, want a packet to LID %d", got, lid)
	}
	s.sendUnicast(hosts[1], 1, 0, "from the new LID")
	if got := hosts[0].Receive(); got.SLID != lid || got.DLID != others {
		t.Errorf("received %+v, want a packet from LID %d to %d", got, lid, others)
	}
}

// Faults of requests: lost ones have no answer, and busy ones are answered by the switch.
func TestFaultsOfRequests(t *testing.T) {
	s := Start(t, Spec{Hosts: 1})
	h := s.NewHost(0)
	port := s.Port(0)
	ask := func(tid uint64) {
		mad := joinRequest(methodSet, &broadcast, s.GID(0))
		setTID(mad, tid)
		h.Send(&ibwire.Packet{
			SLID: port.LID, DLID: port.SMLID, PKey: 0xffff, DestQPN: qpGeneral, SrcQPN: 77, QKey: qkeyGS, Payload: mad,
		})
	}
	s.SetFaults(Faults{Drop: 50, Busy: 1})
	ask(1) // answered with busy
	ask(2) // lost
	ask(3) // relayed
	for _, want := range []struct {
		tid    uint64
		status uint16
	}{{1, statusBusy}, {3, 0}} {
		if p := h.Receive(); tidOf(p.Payload) != want.tid || statusOf(p.Payload) != want.status {
			t.Errorf("answer to transaction %d with status %#x, want %+v", tidOf(p.Payload), statusOf(p.Payload), want)
		}
	}
	if c := s.Counters(0); c.Drops[DropFault] != 1 || c.Requests != 1 || c.Answers != 2 {
		t.Errorf("counters %+v, want one request lost, one relayed, two answers", c)
	}
}

// Another subnet manager replaces one that is killed: the hosts learn its LID. It answers as SA, and knows no members.
func TestMoveSM(t *testing.T) {
	s := Start(t, Spec{Hosts: 2})
	h := s.NewHost(0)
	s.Join(0, private)
	g := s.Join(1, private)
	s.WaitMembers(g.MLID, 0, 1)
	if record := s.Membership(1, g.MGID); record["JoinState"] != "0x1" {
		t.Errorf("host 1: %v, want a full member", record)
	}
	before := s.Port(0)
	s.MoveSM()
	after := s.awaitControl(h, func(c ibwire.Control) bool { return c.SMLID != 0 && c.SMLID != before.SMLID })
	if after.LID != before.LID || after.Events&ibwire.SMChange == 0 {
		t.Errorf("LID %d and events %#x, want LID %d and %#x", after.LID, after.Events, before.LID, ibwire.SMChange)
	}
	s.WaitSM()
	if record := s.Membership(1, g.MGID); len(record) > 0 {
		t.Errorf("host 1 is a member still: %v", record)
	}
	s.askOverWire(h, 0, methodSet, private)
	g = s.Join(1, private)
	s.WaitMembers(g.MLID, 0, 1)
}
