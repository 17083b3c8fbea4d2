package iface

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/link/kernel/capsule"
	"ipoibd/neigh/sa/satest"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// mgid returns the group of an IP address in the default partition.
func mgid(ip netip.Addr) hca.GID {
	return ipoib.GroupMGID(ipoib.ScopeLinkLocal, hca.PKeyDefault, ip)
}

// allNodes are the groups that each interface is a member of.
var allNodes = []netip.Addr{netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("ff02::1")}

// members checks the LIDs of the members of a group in the subnet administrator's table.
func (s *ibSubnet) members(what string, ip netip.Addr, want ...uint16) {
	s.t.Helper()
	synctest.Wait()
	if got := s.sa.Members(mgid(ip)); !slices.Equal(got, want) {
		s.t.Errorf("%s: members of %v: LIDs %v, want %v", what, ip, got, want)
	}
}

// joined returns how many of some groups host b, whose LID is 16, is a member of.
func (s *ibSubnet) joined(ips []netip.Addr) (n int) {
	for _, ip := range ips {
		if slices.Contains(s.sa.Members(mgid(ip)), 16) {
			n++
		}
	}
	return n
}

// groupsFrom returns groups with the numbers from first on.
func groupsFrom(first, n int) (out []netip.Addr) {
	for i := range n {
		out = append(out, netip.AddrFrom4([4]byte{239, 1, byte((first + i) >> 8), byte(first + i)}))
	}
	return out
}

// reportFrom sends an IGMP report of version 2, or a Leave, from a MAC on the host's side (RFC 2236 section 2).
func (h *testHost) reportFrom(src ipoib.MAC, group netip.Addr, joined bool) {
	const igmpReport, igmpLeave = 0x16, 0x17
	p := h.packet(group, 28, 0)
	p[8], p[9] = 1, 2 // TTL, protocol
	ip := group.As4()
	if p[20] = igmpLeave; joined {
		p[20] = igmpReport
	}
	copy(p[24:], ip[:])
	sum := uint32(p[20])<<8 + uint32(binary.BigEndian.Uint16(ip[:])) + uint32(binary.BigEndian.Uint16(ip[2:]))
	binary.BigEndian.PutUint16(p[22:], ^uint16(sum+sum>>16))
	frame := h.frame(ipoib.GroupMAC(group), ipoib.EtherTypeIPv4, p)
	copy(frame[6:], src[:])
	h.tap.Send(frame)
}

// heardBy reports how often a packet of a host to a group arrives at another one.
func heardBy(from, to *testHost, group netip.Addr) (n int) {
	drainInbox(to)
	from.sendIP(ipoib.GroupMAC(group), group, 100, 7)
	for f := to.takeIP(); f != nil; f = to.takeIP() {
		if netip.AddrFrom4([4]byte(f[30:34])) == group {
			n++
		}
	}
	return n
}

// A group that the host joins is joined on the subnet, and received from other hosts; one that it leaves is left. The
// host's IGMP report shows it, or the kernel's list, for a host that sends none. The queue pair stays.
func TestInfiniBandJoinsTheGroupsOfTheHost(t *testing.T) {
	for _, way := range []struct {
		name        string
		join, leave func(h *testHost)
	}{
		{"list", func(h *testHost) { h.tap.Join(mdns) }, func(h *testHost) { h.tap.Leave(mdns) }},
		{"report", func(h *testHost) { h.reportFrom(h.mac(), mdns, true) }, func(h *testHost) { h.reportFrom(h.mac(), mdns, false) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
				c := s.host(3)
				c.up()
				time.Sleep(soon)
				before := b.status()
				for _, ip := range allNodes {
					s.members("at first", ip, 8, 16, 24)
				}
				s.members("at first", mdns)
				if n := heardBy(a, b, mdns); n != 1 {
					t.Errorf("by the broadcast group, b hears %d", n)
				}
				way.join(b)
				time.Sleep(soon)
				s.members("b has joined", mdns, 16)
				if n := heardBy(a, b, mdns); n != 1 {
					t.Errorf("a is no member, b hears %d", n)
				}
				way.join(a)
				time.Sleep(soon)
				s.members("a has joined", mdns, 8, 16)
				if b, c := heardBy(a, b, mdns), heardBy(a, c, mdns); b != 1 || c != 0 {
					t.Errorf("by the group, b hears %d, c hears %d", b, c)
				}
				way.leave(b)
				time.Sleep(soon)
				s.members("b has left", mdns, 8)
				if n := heardBy(a, b, mdns); n != 0 {
					t.Errorf("b has left, and hears %d", n)
				}
				way.leave(a)
				time.Sleep(soon)
				s.members("a has left", mdns)
				if n := heardBy(a, b, mdns); n != 1 {
					t.Errorf("by the broadcast group again, b hears %d", n)
				}
				drainInbox(a, b) // reports
				reach(t, a, b)
				after := b.status()
				if after.QP.QPN != before.QP.QPN || after.QP.Generation != before.QP.Generation || len(after.Groups) != 1+len(allNodes) || len(after.Notices) != 0 {
					t.Errorf("queue pair %+v, was %+v; groups %v, notices %v", after.QP, before.QP, after.Groups, after.Notices)
				}
				checkAccounts(t, after)
			})
		})
	}
}

// The groups of a guest behind a bridge, and the solicited-node groups of the host, are joined. A guest that answers no
// query any more has left.
func TestInfiniBandJoinsTheGroupsOfGuests(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		guest := ipoib.MAC{2, 0xbb}
		solicited := ipoib.SolicitedNode(netip.MustParseAddr("fe80::7"))
		b.tap.SetMaster(9, netip.PrefixFrom(b.ip, 24))
		b.tap.Join(solicited)
		time.Sleep(soon)
		s.members("the bridge has an address", solicited, 16)
		b.reportFrom(guest, mdns, true)
		time.Sleep(soon)
		s.members("the guest has joined", mdns, 16)
		if n := heardBy(a, b, mdns); n != 1 {
			t.Errorf("b hears %d", n)
		}
		b.reportFrom(guest, mdns, false)
		time.Sleep(soon)
		s.members("the guest has left", mdns)
		b.reportFrom(guest, mdns, true)
		time.Sleep(soon)
		known := func() bool {
			return slices.ContainsFunc(b.status().Stations, func(st report.Station) bool { return slices.Contains(st.Groups, mdns.String()) })
		}
		start := time.Now()
		for known() {
			if time.Since(start) > 10*time.Minute {
				t.Fatal("the guest is still a member")
			}
			s.members("the guest is silent", mdns, 16)
			time.Sleep(time.Second)
		}
		time.Sleep(soon - time.Second)
		s.members("the guest has been silent", mdns)
	})
}

// Of more groups than an interface may have, the others go through the broadcast group, and a notice says so. The host
// does not lose its own to those of guests.
func TestInfiniBandGroupsAreBounded(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		room := port.MaxGroups - 1 - len(allNodes)
		all := groupsFrom(0, room+50)
		for i, ip := range all { // a guest has at most 64
			b.reportFrom(ipoib.MAC{2, 0xbb, byte(i / 64)}, ip, true)
			drainInbox(a)
		}
		time.Sleep(soon)
		if n := s.joined(all); n != room {
			t.Errorf("member of %d groups, want %d", n, room)
		}
		st := b.status()
		i := slices.IndexFunc(st.Notices, func(n report.Notice) bool { return n.Kind == "groups_unserved" })
		if len(st.Groups) != port.MaxGroups || i < 0 || st.Notices[i].Text[:3] != "50 " {
			t.Errorf("%d groups, notices %v", len(st.Groups), st.Notices)
		}
		if n := heardBy(a, b, all[len(all)-1]); n != 1 {
			t.Errorf("by the broadcast group, b hears %d", n)
		}
		b.tap.Join(mdns)
		time.Sleep(soon)
		s.members("the host has joined one more", mdns, 16)
		if n := s.joined(all); n != room-1 {
			t.Errorf("member of %d groups of guests, want %d", n, room-1)
		}
		b.tap.Leave(mdns)
		for i, ip := range all[:100] {
			b.reportFrom(ipoib.MAC{2, 0xbb, byte(i / 64)}, ip, false)
			drainInbox(a)
		}
		time.Sleep(soon)
		if n := s.joined(all); n != len(all)-100 {
			t.Errorf("member of %d groups, want %d", n, len(all)-100)
		}
		if st := b.status(); len(st.Notices) != 0 || len(st.Groups) != 1+len(allNodes)+len(all)-100 {
			t.Errorf("%d groups, notices %v", len(st.Groups), st.Notices)
		}
		reach(t, a, b)
	})
}

// A guest that joins and leaves groups all the time asks little of the subnet manager, and delays neither the groups of the
// host nor, for long, those of other guests.
func TestInfiniBandGuestsChurn(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		const seconds, each = 20, 60
		restless := ipoib.MAC{2, 0xbb}
		time.Sleep(soon)
		joins := func() (n int) {
			for request, times := range s.sa.Asked() {
				if request.Method == mad.MethodSet {
					n += times
				}
			}
			return n
		}
		before := joins()
		for i := range seconds {
			groups := groupsFrom(each*i, each)
			for _, ip := range groups {
				b.reportFrom(restless, ip, true)
				drainInbox(a)
			}
			time.Sleep(500 * time.Millisecond)
			for _, ip := range groups {
				b.reportFrom(restless, ip, false)
				drainInbox(a)
			}
			time.Sleep(500 * time.Millisecond)
		}
		most := port.MaxGroups + seconds*int(joinRate)
		if n := joins() - before; n > most || n < most/2 {
			t.Errorf("%d joins, want at most %d, and many", n, most)
		}
		for _, ip := range groupsFrom(0, each) {
			b.reportFrom(restless, ip, true)
			drainInbox(a)
		}
		b.tap.Join(mdns)
		time.Sleep(soon)
		s.members("the host has joined", mdns, 16)
		time.Sleep(each / time.Duration(joinRate) * time.Second)
		if n := s.joined(groupsFrom(0, each)); n != each {
			t.Errorf("member of %d groups of the guest, want %d", n, each)
		}
	})
}

// After a subnet manager has begun again, the memberships are the same, at other MLIDs, and the queue pair stays.
func TestInfiniBandRejoinsGroups(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		for _, h := range []*testHost{a, b} {
			h.tap.Join(mdns)
		}
		time.Sleep(soon)
		before := b.status()
		mlids := func() (out []hca.LID) {
			b.onRun(func(f *Iface) {
				for _, g := range f.fabric.att.plan.Groups {
					out = append(out, g.Path.DLID)
				}
			})
			return out
		}
		was := mlids()
		s.sa.Restart()
		s.members("forgotten", mdns)
		for _, h := range []*testHost{a, b} {
			h.port.Emit(hca.EventClientReregister)
		}
		time.Sleep(soon)
		s.members("joined again", mdns, 8, 16)
		for _, ip := range allNodes {
			s.members("joined again", ip, 8, 16)
		}
		now := mlids()
		if len(now) != len(was) || slices.ContainsFunc(now, func(mlid hca.LID) bool { return slices.Contains(was, mlid) }) {
			t.Errorf("MLIDs %v, were %v", now, was)
		}
		if n := heardBy(a, b, mdns); n != 1 {
			t.Errorf("b hears %d", n)
		}
		reach(t, a, b)
		if after := b.status(); after.QP.QPN != before.QP.QPN || after.QP.Generation != before.QP.Generation {
			t.Errorf("queue pair %+v, was %+v", after.QP, before.QP)
		}
	})
}

// An interface that is set down leaves all groups but the broadcast group, and does not read the host's list. Up again, it
// joins them again.
func TestInfiniBandDownLeavesGroups(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		b.tap.Join(mdns)
		time.Sleep(soon)
		s.members("up", mdns, 16)
		b.tap.SetUp(false)
		time.Sleep(time.Second)
		s.members("down", mdns)
		for _, ip := range allNodes {
			s.members("down", ip, 8)
		}
		if got := s.sa.Members(broadcast); !slices.Equal(got, []uint16{8, 16}) {
			t.Errorf("members of the broadcast group: LIDs %v", got)
		}
		n := b.tap.readings()
		time.Sleep(time.Minute)
		if now := b.tap.readings(); now != n {
			t.Errorf("the list was read %d times while down", now-n)
		}
		b.tap.Leave(mdns)
		sets := func() int { return s.sa.Asked()[satest.Request{Method: mad.MethodSet, About: mgid(mdns)}] }
		before := sets()
		b.tap.SetUp(true)
		time.Sleep(soon)
		if now := sets(); now != before {
			t.Errorf("joined %d times a group that the host left while down", now-before)
		}
		s.members("up again", allNodes[0], 8, 16)
		b.tap.Join(mdns)
		time.Sleep(soon)
		s.members("joined again", mdns, 16)
		a.resolve(b.ip)
		reach(t, a, b)
		n = b.tap.readings()
		time.Sleep(time.Minute)
		if now := b.tap.readings(); now-n < 59 || now-n > 61 {
			t.Errorf("the list was read %d times in a minute", now-n)
		}
	})
}

// Messages to a group that cannot be joined go to the broadcast group, and a notice says so, until it is joined.
func TestInfiniBandGroupThatCannotBeJoined(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		time.Sleep(soon)
		s.lost.Store(true)
		b.tap.Join(mdns)
		noticed := func() bool {
			return slices.ContainsFunc(b.status().Notices, func(n report.Notice) bool { return n.Kind == "groups_unserved" })
		}
		for start := time.Now(); !noticed(); time.Sleep(time.Second) {
			if time.Since(start) > time.Minute {
				t.Fatalf("no notice")
			}
		}
		if there, back := heardBy(a, b, mdns), heardBy(b, a, mdns); there != 1 || back != 1 {
			t.Errorf("by the broadcast group: b hears %d, a hears %d", there, back)
		}
		s.lost.Store(false)
		time.Sleep(20 * time.Second) // the longest pause between two tries, and an eighth
		s.members("the subnet administrator is back", mdns, 16)
		if noticed() {
			t.Error("the notice is still there")
		}
	})
}

// A list that cannot be read is read again, and the memberships stay.
func TestInfiniBandListCannotBeRead(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, _, b *testHost) {
		b.tap.Join(mdns)
		time.Sleep(soon)
		b.tap.refuseGroups(errStuck)
		b.tap.Leave(mdns)
		time.Sleep(5 * soon)
		s.members("unreadable", mdns, 16)
		b.tap.refuseGroups(nil)
		time.Sleep(soon)
		s.members("readable again", mdns)
	})
}

// The process that continues an interface has joined the same groups of the port, so the former one does not leave them.
func TestInfiniBandHandOverKeepsGroups(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, _, b *testHost) {
		b.tap.Join(mdns)
		time.Sleep(soon)
		time.Sleep(100 * time.Millisecond) // the list is not being read
		p, err := b.iface.Park(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Export(capsule.NewWriter()); err != nil {
			t.Fatal(err)
		}
		p.Leave()
		time.Sleep(soon)
		s.members("handed over", mdns, 16)
	})
}

// On RoCE one group carries all: nothing is joined, and the host's list is not read.
func TestGroupsOnRoCE(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		b.tap.Join(mdns)
		b.reportFrom(b.mac(), groupsFrom(0, 1)[0], true)
		time.Sleep(time.Minute)
		if n := b.tap.readings(); n != 0 {
			t.Errorf("the list was read %d times", n)
		}
		if g := b.status().Groups; len(g) != 1 {
			t.Errorf("groups %v", g)
		}
		if n := heardBy(a, b, mdns); n != 1 {
			t.Errorf("b hears %d", n)
		}
	})
}
