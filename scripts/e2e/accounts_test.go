package e2e

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// book holds every counter of a host's one device, prefixed by "hca_", and of
// its one interface.
type book struct {
	tb     testing.TB
	values map[string]uint64
}

func (h *host) book() book {
	h.tb.Helper()
	b := book{h.tb, map[string]uint64{}}
	s := h.counted()
	b.add("hca_", s.Devices[0].Counters)
	b.add("", s.Interfaces[0].Counters)
	b.add("", s.Interfaces[0].Kernel)
	return b
}

// counted returns the status with the kernel's counters, which are missing while another process holds the rtnl lock,
// which is that of all namespaces.
func (h *host) counted() status {
	h.tb.Helper()
	s := h.daemon.status()
	for range 20 {
		if _, ok := s.Interfaces[0].Kernel["kernel_rx_packets"]; ok {
			break
		}
		time.Sleep(100 * time.Millisecond)
		s = h.daemon.status()
	}
	return s
}

func (b book) add(prefix string, list map[string]uint64) {
	b.tb.Helper()
	for name, n := range list {
		name = prefix + name
		if _, twice := b.values[name]; twice {
			b.tb.Fatalf("two counters are called %s", name)
		}
		b.values[name] = n
	}
}

// since returns the differences from an earlier book, also for gauges.
func (b book) since(earlier book) book {
	d := book{b.tb, map[string]uint64{}}
	for n, v := range b.values {
		d.values[n] = v - earlier.values[n]
	}
	return d
}

// of returns the sum of counters, all of which must exist.
func (b book) of(names ...string) (sum uint64) {
	b.tb.Helper()
	for _, n := range names {
		v, ok := b.values[n]
		if !ok {
			b.tb.Fatalf("no counter is called %s", n)
		}
		sum += v
	}
	return sum
}

// all returns the sum of the counters with a prefix.
func (b book) all(prefix string) (sum uint64) {
	for n, v := range b.values {
		if strings.HasPrefix(n, prefix) {
			sum += v
		}
	}
	return sum
}

// stillness is how long counters must stay unchanged to count as at rest. The
// kernel's own traffic, such as repeated multicast reports and neighbour probes,
// comes at shorter intervals after a change.
const stillness = 3 * time.Second

// quietBook returns the counters of a status between two others that show that no probe began
// meanwhile, because the counters of one status are not read at once. It returns false if it finds no
// such moment: even an idle daemon sends probes, and one with several lanes many.
func (h *host) quietBook() (k book, quiet bool) {
	h.tb.Helper()
	for range 20 {
		before := h.book()
		k = h.book()
		if before.of("freeze_probes") == h.book().of("freeze_probes") && k.of("tx_outstanding", "tx_queued") == 0 {
			return k, true
		}
	}
	return k, false
}

// rest waits until no host has sent or received a frame for a while, and returns the counters. It
// stops waiting for the answer to a probe after a while, because the accounts show the loss.
func rest(tb testing.TB, hosts ...*host) (books []book) {
	tb.Helper()
	var last []map[string]uint64
	var since, missedSince time.Time
	var missed []uint64 // probes of each host without an answer
	var moved []string  // the counters that changed last
	defer func() {
		if tb.Failed() {
			tb.Logf("the counters that changed last, %v ago: %v; probes without an answer for %v: %v", time.Since(since), moved, time.Since(missedSince), missed)
		}
	}()
	eventually(tb, 10*stillness, "traffic rests", func() bool {
		time.Sleep(stillness / 10)
		books = nil
		var now []map[string]uint64
		var missing []uint64
		sending := false
		for _, h := range hosts {
			k, quiet := h.quietBook()
			books, now = append(books, k), append(now, k.traffic())
			missing = append(missing, k.of("freeze_probes")-k.of("rx_probe"))
			sending = sending || !quiet
		}
		if !reflect.DeepEqual(now, last) {
			moved = nil
			for i, counters := range last {
				for name, v := range counters {
					if now[i][name] != v {
						moved = append(moved, fmt.Sprintf("%s of host %d from %d to %d", name, i, v, now[i][name]))
					}
				}
			}
			last, since = now, time.Now()
		}
		if !slices.Equal(missing, missed) {
			missed, missedSince = missing, time.Now()
		}
		answered := !slices.ContainsFunc(missing, func(n uint64) bool { return n != 0 })
		return time.Since(since) > stillness && !sending && (answered || time.Since(missedSince) > stillness)
	})
	return books
}

// amidRest returns a time in the rest that has just been waited for: what was sent before is in the counters of that
// rest, and what is sent later is not.
func amidRest() time.Time { return time.Now().Add(-stillness / 2) }

// traffic returns the counters that do not change without traffic: probes from a
// queue pair to itself do not affect them.
func (k book) traffic() map[string]uint64 {
	out := map[string]uint64{}
	for name, v := range k.values {
		for _, prefix := range []string{"kernel_", "tap_", "neigh_", "hca_wire_", "fast_"} {
			if strings.HasPrefix(name, prefix) {
				out[name] = v
			}
		}
	}
	return out
}

// wireDrops and rxDrops are the device's reasons to drop a message or a
// datagram. Each counter is incremented at the drop, not computed by subtraction.
var (
	sendDrops = []string{"hca_tx_drop_port_down", "hca_tx_drop_no_source", "hca_tx_drop_peer_family", "hca_tx_drop_no_room", "hca_tx_drop_transport"}
	wireDrops = []string{
		"hca_wire_tx_drop_no_route", "hca_wire_tx_drop_too_long", "hca_wire_tx_drop_bad_source", "hca_wire_tx_drop_link_down", "hca_wire_tx_drop_no_device", "hca_wire_tx_drop_forbidden",
		"hca_wire_tx_drop_no_buffers", "hca_wire_tx_drop_refused", "hca_wire_tx_drop_invalid", "hca_wire_tx_drop_rejected",
	}
	recvDrops = []string{
		"hca_rx_drop_short", "hca_rx_drop_version", "hca_rx_drop_opcode", "hca_rx_drop_immediate", "hca_rx_drop_pad", "hca_rx_drop_too_long", "hca_rx_drop_icrc", "hca_rx_own_source", "hca_rx_drop_unknown_peer", "hca_rx_drop_no_qp", "hca_rx_drop_gsi", "hca_rx_drop_not_attached", "hca_rx_drop_group_qpn", "hca_rx_other_pkey",
		"hca_rx_drop_qp_state", "hca_rx_drop_pkey", "hca_rx_drop_qkey", "hca_rx_drop_no_recv", "hca_rx_drop_recv_length", "hca_rx_drop_recv_access",
	}
)

// Once traffic has stopped, the counters account for every frame, from the host's
// stack to the underlay and back, whichever way it took.
func TestAccounts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, args := range [][]string{nil, {"--fast-path"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) { accounts(t, args...) })
	}
}

func accounts(t *testing.T, args ...string) {
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		// Router solicitations continue for longer than this test waits.
		h.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0")
		h.Run("ethtool", "-K", nstest.Dev, "tx-udp-segmentation", "off") // the capture counts single datagrams
		h.join(args...)
	}
	if len(args) > 0 {
		pingAll(a, b)
		a.waitFast(b)
	}
	witness := a.capture()
	before, from := rest(t, a, b), amidRest()
	pingAll(a, b)
	for _, dst := range []string{b.ip4(), b.ip6()} {
		a.Run("ping", "-n", "-q", "-f", "-c", "3000", "-s", "1200", dst)
	}
	b.Run("ping", "-n", "-q", "-f", "-c", "1000", "-s", "40", a.ip4())
	// Packets to an unused address.
	_ = a.Command("ping", "-n", "-c", "2", "-W", "1", "10.44.0.77").Run()
	after, to := rest(t, a, b), amidRest()
	witness.Stop()
	seen := witness.datagramsBetween(t, from, to)
	for i, h := range hosts {
		k := after[i].since(before[i])
		h.checkAccounts(k, seen)
		if n := k.all("fast_tx_packets"); len(args) > 0 && n < 1000 {
			t.Errorf("only %d frames took the fast path", n)
		}
	}
}

// checkAccounts follows one host's frames from its stack to the underlay, then
// back. An observer has counted the datagrams of each host on the underlay.
func (h *host) checkAccounts(k book, seen map[netip.Addr]uint64) {
	h.tb.Helper()
	h.checkDaemon(k)
	h.equal("datagrams sent = the witness's", k.sent(), seen[h.underlayAddr()])
	others := uint64(0)
	for addr, n := range seen {
		if addr != h.underlayAddr() {
			others += n
		}
	}
	h.equal("the witness's = datagrams received", others, k.received())
}

// sent returns the datagrams that the host has sent to the underlay, and received those that have arrived from it. Without a
// fast path, its counters are missing.
func (b book) sent() uint64 { return b.of("hca_wire_tx_packets") + b.all("fast_tx_packets") }

func (b book) received() uint64 {
	return b.of("hca_wire_rx_packets", "hca_wire_socket_drops") + b.all("fast_rx_packets")
}

// equal compares two sides of an account.
func (h *host) equal(what string, got, want uint64) {
	h.tb.Helper()
	h.tb.Logf("host %d: %-46s %7d = %d", h.number, what, got, want)
	if got != want {
		h.tb.Errorf("host %d: %s: %d, want %d", h.number, what, got, want)
	}
}

// checkDaemon follows one host's frames from its stack to its socket, then back.
func (h *host) checkDaemon(k book) {
	h.tb.Helper()
	equal := func(what string, got, want uint64) { h.tb.Helper(); h.equal(what, got, want) }
	h.checkInterface(k)
	equal("sent, cut = device's datagrams, own probes", k.of("tx_sent", "tx_segments")-k.of("tx_large"), k.of("hca_tx_packets", "rx_probe")+k.of(sendDrops...))
	equal("device's datagrams = transport's", k.of("hca_tx_packets"), k.of("hca_wire_tx_packets")+k.of(wireDrops...))
	equal("transport received = device received", k.of("hca_wire_rx_packets"), k.of("hca_rx_packets"))
	equal("device received + looped = delivered, blocked, dropped", k.of("hca_rx_packets", "hca_tx_looped"), k.of("hca_rx_delivered", "hca_tx_loop_blocked")+k.of(recvDrops...))
	equal("device delivered = engine received", k.of("hca_rx_delivered"), k.of("rx_received"))
}

// checkInterface follows one host's frames from its stack to its device, then back. Unlike the device's counters,
// these go on when the device is opened again.
func (h *host) checkInterface(k book) {
	h.tb.Helper()
	equal := func(what string, got, want uint64) { h.tb.Helper(); h.equal(what, got, want) }
	equal("ib0 sent = TAP read", k.of("kernel_tx_packets"), k.of("tap_read", "tap_drop_read_too_long"))
	equal("TAP read = engine read", k.of("tap_read"), k.of("tx_read"))
	equal("engine read + injected = ended", k.of("tx_read", "tx_injected"),
		k.of("tx_sent", "tx_slow_path", "tx_outstanding", "tx_queued")+k.all("tx_drop_")+k.all("tx_wc_"))
	equal("sends posted = completed", k.of("tx_posts"), k.of("tx_completions", "tx_taken_back", "tx_outstanding"))
	equal("slow path in = neighbour table in", k.of("tx_slow_path", "rx_slow_path"), k.of("neigh_from_host", "neigh_from_fabric"))
	equal("neighbour table in = out", k.of("neigh_from_host", "neigh_from_fabric", "neigh_pings"),
		k.of("neigh_to_fabric", "neigh_to_host", "neigh_echo_replies", "neigh_kept_sent", "neigh_kept", "neigh_own_multicast", "neigh_own_query_answers")+k.all("neigh_drop_"))
	equal("neighbour table out = injected", k.of("tx_injected"),
		k.of("neigh_to_fabric", "neigh_kept_sent", "neigh_requests", "neigh_announcements", "freeze_probes"))
	equal("engine received = ended", k.of("rx_received"), k.of("rx_delivered", "rx_slow_path", "rx_probe", "rx_own_multicast")+k.all("rx_drop_"))
	equal("receives posted = completed", k.of("rx_posts"), k.of("rx_completions", "rx_taken_back", "rx_outstanding"))
	equal("engine, joined + table to host = TAP written", k.of("rx_delivered", "rx_drop_sink_refused", "neigh_to_host", "neigh_corrections", "neigh_seeks", "neigh_queries")-k.of("rx_merged"), k.of("tap_written")+k.all("tap_drop_write_"))
	equal("TAP written = ib0 received", k.of("tap_written"), k.of("kernel_rx_packets", "kernel_rx_dropped", "kernel_rx_errors"))
}

// underlayAddr returns the source address of the host's datagrams.
func (h *host) underlayAddr() netip.Addr {
	h.tb.Helper()
	return netip.MustParseAddr(h.qp().GID)
}
