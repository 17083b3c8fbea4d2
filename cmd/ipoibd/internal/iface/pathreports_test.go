package iface

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/neigh"
)

// reportStep is what happens to the reports, and what follows.
type reportStep struct {
	after time.Duration // since the last step
	// What the device says: a path of this MTU, 0 if all are wide. A negative one is that of a route.
	says     int
	tick     bool // nothing but time
	answer   bool // the peer answers
	alone    bool // there is no peer to ask
	ask      bool // want: an echo request is sent
	refuted  bool // want: the report is refuted
	inForce  int  // want: the MTU of the path that is believed; 0: none
	examined bool // want: an examination is under way
}

func TestPathReports(t *testing.T) {
	const soon = tryEvery
	for _, c := range []struct {
		name  string
		steps []reportStep
	}{
		{"a forged report is refuted", []reportStep{
			{says: 1400, examined: true},
			{tick: true, ask: true, examined: true},
			{answer: true, refuted: true},
			{says: 0},
			{says: 1300, examined: true},
			{tick: true, ask: true, examined: true},
			{answer: true, refuted: true},
		}},
		{"one answer of three suffices", []reportStep{
			{says: 1400, examined: true},
			{tick: true, ask: true, examined: true},
			{after: soon, tick: true, ask: true, examined: true},
			{after: soon, tick: true, ask: true, examined: true},
			{answer: true, refuted: true},
		}},
		{"a true report is in force after three requests, and examined later and later", []reportStep{
			{says: 1400, examined: true},
			{tick: true, ask: true, examined: true},
			{after: soon, tick: true, ask: true, examined: true},
			{after: soon, tick: true, ask: true, examined: true},
			{after: soon, tick: true, inForce: 1400},
			{says: 1400, inForce: 1400},
			{after: examineAfter - 1, tick: true, inForce: 1400},
			{after: 1, tick: true, ask: true, inForce: 1400, examined: true},
			{after: soon, tick: true, ask: true, inForce: 1400, examined: true},
			{after: soon, tick: true, ask: true, inForce: 1400, examined: true},
			{after: soon, tick: true, inForce: 1400},
			{after: 2*examineAfter - 1, tick: true, inForce: 1400},
			{after: 1, tick: true, ask: true, inForce: 1400, examined: true},
			{answer: true, refuted: true, inForce: 1400},
			{says: 0},
		}},
		{"a narrower report leaves the one in force as it is, until it is examined", []reportStep{
			{says: 1400, alone: true, inForce: 1400},
			{says: 1300, inForce: 1400, examined: true},
			{tick: true, ask: true, inForce: 1400, examined: true},
			{says: 1200, inForce: 1400, examined: true},
			{after: soon, tick: true, ask: true, inForce: 1400, examined: true},
			{answer: true, refuted: true, inForce: 1400},
		}},
		{"reports that become ever narrower do not prolong an examination", []reportStep{
			{says: 1400, examined: true},
			{tick: true, ask: true, examined: true},
			{says: 1390, examined: true},
			{after: soon, tick: true, ask: true, examined: true},
			{says: 1380, examined: true},
			{after: soon, tick: true, ask: true, examined: true},
			{says: 1370, examined: true},
			{after: soon, tick: true, inForce: 1370},
		}},
		{"a report that is withdrawn", []reportStep{{says: 1400, examined: true}, {says: 0}, {after: soon, tick: true}}},
		{"routes are believed", []reportStep{{says: -1400, inForce: 1400}, {after: time.Hour, tick: true, inForce: 1400}, {says: -1300, inForce: 1300}}},
		{"so is what is wider", []reportStep{{says: -1300, inForce: 1300}, {says: 1400, inForce: 1400}}},
		{"without a peer to ask", []reportStep{
			{says: 1400, alone: true, inForce: 1400}, {after: examineAfter, tick: true, ask: true, inForce: 1400, examined: true}, {answer: true, refuted: true, inForce: 1400},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pathReports
			now, peer := time.Unix(1000, 0), netip.MustParseAddr("192.0.2.9")
			for i, s := range c.steps {
				now = now.Add(s.after)
				var ask, refuted bool
				switch id := uint64(i + 1); {
				case s.tick:
					ask, _ = p.next(now, id)
					p.size = 1444
				case s.answer:
					for _, r := range []neigh.EchoReply{
						{ID: p.id + 1, GID: hca.GIDFromAddr(peer), Size: 1444}, {ID: p.id, GID: hca.GIDFromAddr(peer), Size: 64}, {ID: p.id, Size: 1444},
					} {
						if _, yes := p.refutes(now, r); yes {
							t.Errorf("step %d: refuted by %+v", i, r)
						}
					}
					_, refuted = p.refutes(now, neigh.EchoReply{ID: p.id, GID: hca.GIDFromAddr(peer), Size: 1444})
				default:
					var path hca.PathLimit
					if mtu := max(s.says, -s.says); mtu > 0 {
						path = hca.PathLimit{To: peer, MTU: mtu, Carries: mtu - 52, MaxPayload: mtu - 52, Reported: s.says > 0}
					}
					p.judge(now, path, id, func() bool { return !s.alone })
				}
				if ask != s.ask || refuted != s.refuted || p.inForce.MTU != s.inForce || p.claim.To.IsValid() != s.examined {
					t.Fatalf("step %d, %+v: asked %t, refuted %t, %+v", i, s, ask, refuted, p)
				}
			}
		})
	}
}

// A path that stays narrow costs few echo requests.
func TestPathReportsAreBounded(t *testing.T) {
	var p pathReports
	now, asked := time.Unix(1000, 0), 0
	for range 3600 {
		now = now.Add(time.Second)
		p.judge(now, hca.PathLimit{To: netip.MustParseAddr("192.0.2.9"), MTU: 1400, Carries: 1348, MaxPayload: 1348, Reported: true}, 1, func() bool { return true })
		for range 10 {
			if ask, _ := p.next(now, 1); ask {
				asked++
			}
		}
	}
	if asked == 0 || asked > 3*16 {
		t.Errorf("%d echo requests in an hour about a path that stays narrow", asked)
	}
}

// Most peers at an address may be invented, so those that the host sent data to most recently come first.
func TestPeersAt(t *testing.T) {
	here, there := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.8")
	var peers []neigh.PeerInfo
	for n := range 100 {
		peers = append(peers, neigh.PeerInfo{GID: hca.GIDFromAddr(here), QPN: hca.QPN(1000 + n)})
	}
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	peers = append(peers, neigh.PeerInfo{GID: hca.GIDFromAddr(here), QPN: 1, Sent: at(5)}, neigh.PeerInfo{GID: hca.GIDFromAddr(there), QPN: 2, Sent: at(9)},
		neigh.PeerInfo{GID: hca.GIDFromAddr(here), QPN: 3, Sent: at(7)})
	if got := peersAt(here, peers); len(got) != 102 || got[0].QPN != 3 || got[1].QPN != 1 {
		t.Errorf("%d peers, first %+v and %+v", len(got), got[0], got[1])
	}
}
