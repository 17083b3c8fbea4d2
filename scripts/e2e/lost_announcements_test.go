package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// The goals, counted from "device open" of a restarted daemon: contact within contactGoal
// regardless of its announcements, and within heardGoal, as the median, if none is lost.
// The machine may be shared and slow, so the short forms allow ten times as long. The long
// form, on an idle machine, wants contactShare per cent of the restarts within
// contactGoal. TestSilentPeerIsAskedForInTime of neigh and TestSilentPeerIsAskedFor of
// cmd/ipoibd/internal/iface assert the exact times in virtual time.
const (
	contactGoal  = 3 * time.Second
	contactShare = 95
	heardGoal    = 100 * time.Millisecond
	slower       = 10
)

// announcementRules match frames of a host that announce one of its addresses, by
// gratuitous ARP or by an unsolicited neighbour advertisement. Behind the UDP header
// (8 bytes) come BTH (12), DETH (8) and the IPoIB header (4), which begins with the
// ethertype, at bit 224. The target address of an ARP body is at byte 52, the ICMPv6 type
// of an IPv6 packet at byte 40.
func announcementRules(of *host) []string {
	ip := of.ip4()
	var target uint32
	for _, b := range addr(ip).AsSlice() {
		target = target<<8 | uint32(b)
	}
	return []string{
		fmt.Sprintf("udp dport 4791 @th,224,16 0x0806 @th,672,32 %#x", target),
		"udp dport 4791 @th,224,16 0x86dd @th,576,8 136",
	}
}

// dropFrom makes a host's underlay drop the frames of the other host that match a rule:
// all of them, or only those to the group.
func (h *host) dropFrom(other *host, toGroup bool, rules []string) {
	h.tb.Helper()
	other.Run("ethtool", "-K", nstest.Dev, "tx-udp-segmentation", "off") // a rule would drop all messages of a train
	match := "ip saddr " + other.underlay().String()
	if toGroup {
		match += " ip daddr " + groupAddr.String()
	}
	h.Run("nft", "add table netdev lost")
	h.Run("nft", fmt.Sprintf("add chain netdev lost in { type filter hook ingress device %s priority 0; }", nstest.Dev))
	for _, rule := range rules {
		h.Run("nft", fmt.Sprintf("add rule netdev lost in %s %s counter drop", match, rule))
	}
}

// dropped returns how many frames the rules of dropFrom dropped.
func (h *host) dropped() (n int) {
	h.tb.Helper()
	for _, m := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(h.Run("nft", "list table netdev lost"), -1) {
		packets, _ := strconv.Atoi(m[1])
		n += packets
	}
	return n
}

// A restarted host is reached within contactGoal of its daemon's "device open" even when
// its announcements are lost, and at once when they are not.
func TestRestartIsNoticedWithoutAnnouncements(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	trials := form(2, 100)
	for _, c := range []struct {
		name   string
		lose   func(a, b *host) // nil: nothing is lost
		notice bool             // the restarted host announces itself by unicast
	}{
		{"nothing lost", nil, false},
		{"lost to the group", func(a, b *host) { a.dropFrom(b, true, announcementRules(b)) }, true},
		{"all lost", func(a, b *host) { a.dropFrom(b, false, announcementRules(b)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			hosts := newHosts(t, 2)
			a, b := hosts[0], hosts[1]
			a.join()
			b.join()
			pingAll(a, b)
			if c.lose != nil {
				c.lose(a, b)
			}
			var took []time.Duration
			for range trials {
				took = append(took, b.restartUnder(a))
			}
			requireContact(t, took, c.lose == nil)
			if c.lose != nil && a.dropped() == 0 {
				t.Error("no announcement was lost, so the test proves nothing")
			}
			if n := b.book().of("neigh_stray_notices"); c.notice && n == 0 {
				t.Error("no notice was sent")
			}
			t.Logf("the other host asked %d times", a.book().of("neigh_silences"))
		})
	}
}

// requireContact checks how long after "device open" restarted hosts were reached. If
// heard is set, their announcements were not lost.
func requireContact(t *testing.T, took []time.Duration, heard bool) {
	t.Helper()
	slices.Sort(took)
	n := len(took)
	middle, longest := median(took), took[n-1]
	spread := took
	if n > 11 { // deciles
		spread = nil
		for i := range 11 {
			spread = append(spread, took[i*(n-1)/10])
		}
	}
	inTime := 0
	for _, d := range took {
		if d <= contactGoal {
			inTime++
		}
	}
	t.Logf("%d of %d restarted hosts reached within %v of device open; spread %v", inTime, n, contactGoal, spread)
	if heard {
		t.Logf("median %v, goal %v", middle, heardGoal)
	}
	switch {
	case *soak && 100*inTime < contactShare*n:
		t.Errorf("%d of %d reached within %v, want %d %%: %v", inTime, n, contactGoal, contactShare, took)
	case longest > slower*contactGoal:
		t.Errorf("reached after %v, want %v at most: %v", longest, slower*contactGoal, took)
	case heard && middle > slower*heardGoal:
		t.Errorf("median %v, want %v at most: %v", middle, slower*heardGoal, took)
	}
}

// restartUnder kills h's daemon and starts the next one while other keeps sending to h. It
// returns how long after the new daemon opened its device the first answer came. The talk has the
// time of that: on a busy machine, it takes long to start a ping.
func (h *host) restartUnder(other *host) time.Duration {
	h.tb.Helper()
	h.daemon.kill()
	talk := other.talkTo(h)
	h.start()
	opened := h.daemon.logTime("device open")
	var answered time.Time
	for answered = talk.first(); answered.IsZero(); answered = talk.first() {
		if limit := slower * contactGoal; time.Since(opened) > limit {
			h.tb.Fatalf("not reached within %v\n%s\n%s", limit, h.describe(), other.describe())
		}
		time.Sleep(10 * time.Millisecond)
	}
	talk.end(100)
	return answered.Sub(opened).Round(time.Millisecond)
}

var firstAnswer = regexp.MustCompile(`(?m)^\[(\d+\.\d+)\] \d+ bytes from `)

// first returns when the first answer came; zero: none has come yet.
func (k *talk) first() time.Time {
	k.tb.Helper()
	m := firstAnswer.FindStringSubmatch(k.out.String())
	if m == nil {
		return time.Time{}
	}
	at, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		k.tb.Fatal(err)
	}
	return time.UnixMicro(int64(at * 1e6))
}

// logTime waits until the daemon has logged a message and returns when it first did.
func (d *daemon) logTime(message string) time.Time {
	d.tb.Helper()
	pattern := regexp.MustCompile(`time=(\S+) level=\S+ msg="` + message + `"`)
	var line []string
	eventually(d.tb, startLimit, "the daemon logs "+message, func() bool {
		line = pattern.FindStringSubmatch(d.log.String())
		return line != nil
	})
	at, err := time.Parse(time.RFC3339Nano, line[1])
	if err != nil {
		d.tb.Fatal(err)
	}
	return at
}

// The table sends no requests for peers that answer, whether the host sends to them all
// the time or occasionally. If the machine stalls for half a second, requests are
// legitimate, so the test only logs them. TestPeersThatAnswerAreNotAsked of neigh asserts
// the same in virtual time.
func TestPeersThatAnswerAreNotAsked(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	before := a.book()
	talk := b.talkTo(a)
	length := form(5*time.Second, 5*time.Minute)
	for start := time.Now(); time.Since(start) < length; time.Sleep(1300 * time.Millisecond) {
		a.reaches(b)
	}
	talk.end(100)
	stalled := talk.longest() > stallLimit
	t.Logf("%d messages delivered, answered within %v", a.book().since(before).of("rx_delivered"), talk.longest())
	for _, h := range []*host{a, b} {
		n := h.book().of("neigh_silences")
		t.Logf("host %d asked %d times", h.number, n)
		if n != 0 && !stalled {
			t.Errorf("host %d asked %d times for a peer that answers", h.number, n)
		}
	}
}

// stallLimit is the delay of an answer that indicates a stall of the machine or a host.
// A host sends requests after a silence of twice that time.
const stallLimit = 500 * time.Millisecond

var longestAnswer = regexp.MustCompile(`rtt min/avg/max/mdev = [0-9.]+/[0-9.]+/([0-9.]+)/`)

// longest returns how long the slowest answer took. The talk must have ended.
func (k *talk) longest() time.Duration {
	k.tb.Helper()
	m := longestAnswer.FindStringSubmatch(k.out.String())
	if m == nil {
		k.tb.Fatalf("ping got no answer:\n%s", k.out.String())
	}
	ms, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		k.tb.Fatal(err)
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// After a restart all multicast is lost in both directions. The restarted host sends
// notices by unicast, and the hosts find each other soon after multicast returns, with
// the next request of either. The goal is 2 s; TestTranscripts of neigh asserts the
// times.
func TestRestartWhileMulticastIsLost(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	segment := nstest.NewSegment(t, underlayMTU)
	var hosts []*host
	for i := range 2 {
		hosts = append(hosts, &host{Namespace: segment.Host(i), tb: t, number: i, dir: shortDir(t)})
	}
	a, b := hosts[0], hosts[1]
	a.join()
	b.join()
	pingAll(a, b)
	flood := func(state string) {
		for _, port := range []string{"port0", "port1"} {
			segment.Run("bridge", "link", "set", "dev", port, "mcast_flood", state)
		}
	}
	flood("off")
	b.daemon.kill()
	talk := a.talkTo(b)
	b.start()
	eventually(t, startLimit, "the restarted host sends a notice", func() bool {
		return b.book().of("neigh_stray_notices") > 0
	})
	time.Sleep(time.Until(b.daemon.logTime("device open").Add(3600 * time.Millisecond))) // by then four announcements are lost
	flood("on")
	t.Logf("reached %v after the return of multicast (goal: 2 s)", a.waitReaches(b))
	talk.end(100)
}
