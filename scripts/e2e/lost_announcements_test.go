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

// contactLimit is how long after its daemon's "device open" a restarted host is
// reached at the latest, whatever happens to its announcements.
const contactLimit = 3 * time.Second

// Rules for the underlay of the host that does not hear: frames of the other host
// that announce an address of it, by gratuitous ARP or by an unsolicited neighbour
// advertisement. Behind the UDP header (8 bytes) come BTH (12), DETH (8) and the
// IPoIB header (4), which begins with the ethertype, at bit 224. An ARP body has its
// target's address at 52 bytes, an IPv6 packet its ICMPv6 type at 40.
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

// dropFrom has a host's underlay drop what matches, of what the other host sends to
// the group, or of all that it sends.
func (h *host) dropFrom(other *host, toGroup bool, rules []string) {
	h.tb.Helper()
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

// dropped returns how many frames the rules of dropFrom have dropped.
func (h *host) dropped() (n int) {
	h.tb.Helper()
	for _, m := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(h.Run("nft", "list table netdev lost"), -1) {
		packets, _ := strconv.Atoi(m[1])
		n += packets
	}
	return n
}

// A restarted host is reached within contactLimit of its daemon's "device open"
// although its announcements are lost, and at once where they are not (issue 10,
// part 4; review of lost announcements).
func TestRestartIsNoticedWithoutAnnouncements(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	trials := 2
	if *soak {
		trials = 100
	}
	for _, c := range []struct {
		name   string
		lose   func(a, b *host)
		median time.Duration // ten times what is wanted on an idle machine; 0: contactLimit says it all
		notice bool          // the restarted host tells where it is, by unicast
	}{
		{"nothing lost", func(a, b *host) {}, time.Second, false},
		{"lost to the group", func(a, b *host) { a.dropFrom(b, true, announcementRules(b)) }, 0, true},
		{"all lost", func(a, b *host) { a.dropFrom(b, false, announcementRules(b)) }, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			hosts := newHosts(t, 2)
			a, b := hosts[0], hosts[1]
			a.join()
			b.join()
			pingAll(a, b)
			c.lose(a, b)
			var took []time.Duration
			for range trials {
				took = append(took, b.restartUnder(a))
			}
			slices.Sort(took)
			t.Logf("%d restarts: reached %v to %v after device open, median %v", trials, took[0], took[trials-1], took[trials/2])
			if took[trials-1] > contactLimit {
				t.Errorf("reached after %v, want %v at most: %v", took[trials-1], contactLimit, took)
			}
			if c.median > 0 && took[trials/2] > c.median {
				t.Errorf("median %v, want %v at most", took[trials/2], c.median)
			}
			if c.median == 0 && a.dropped() == 0 {
				t.Error("no announcement was lost: this shows nothing")
			}
			if n := b.book().of("neigh_stray_notices"); c.notice && n == 0 {
				t.Error("no notice was sent")
			}
			t.Logf("the other host asked %d times", a.book().of("neigh_silences"))
		})
	}
}

// restartUnder kills h's daemon and starts the next one while other sends to h all
// the time. It returns how long after the new daemon opened its device the first
// answer came.
func (h *host) restartUnder(other *host) time.Duration {
	h.tb.Helper()
	h.daemon.kill()
	talk := other.talkTo(h)
	h.start()
	opened := h.daemon.logTime("device open")
	var took time.Duration
	for {
		if other.Command("ping", "-n", "-c", "1", "-W", "0.02", h.ip4()).Run() == nil {
			took = time.Since(opened)
			break
		}
		if time.Since(opened) > repairLimit {
			h.tb.Fatalf("not reached within %v\n%s\n%s", repairLimit, h.describe(), other.describe())
		}
	}
	talk.end(100)
	return took.Round(time.Millisecond)
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

// Peers that answer are not asked for, whether they are sent to all the time or now
// and then.
func TestPeersThatAnswerAreNotAsked(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	before := a.book()
	talk := b.talkTo(a)
	length := 5 * time.Second
	if *soak {
		length = 5 * time.Minute
	}
	for start := time.Now(); time.Since(start) < length; time.Sleep(1300 * time.Millisecond) {
		a.reaches(b)
	}
	talk.end(100)
	for _, h := range []*host{a, b} {
		if n := h.book().of("neigh_silences"); n != 0 {
			t.Errorf("host %d asked %d times for a peer that answers", h.number, n)
		}
	}
	t.Logf("%v", a.book().since(before).of("rx_delivered"))
}

// All multicast is lost both ways for a while after a restart: the hosts find each
// other within 2 s of its return.
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
	time.Sleep(time.Until(b.daemon.logTime("device open").Add(3600 * time.Millisecond)))
	flood("on")
	back := time.Now()
	took := a.waitReaches(b)
	t.Logf("reached %v after the return of multicast; %d notices", took, b.book().of("neigh_stray_notices"))
	if since := time.Since(back); since > 2*time.Second {
		t.Errorf("reached %v after the return of multicast, want 2 s at most", since)
	}
	if b.book().of("neigh_stray_notices") == 0 {
		t.Error("the restarted host sent no notice, which needs no multicast")
	}
	talk.end(100)
}
