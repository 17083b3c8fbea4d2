package backend

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"ipoibd/hca"
)

const (
	// lookEvery is the interval at which the counters and reports of a software HCA are read.
	lookEvery = time.Second
	// silentAfter is how long a device sends without an answer until that is reported. Each
	// host sends to the groups of ib0 when it comes up.
	silentAfter = 30 * time.Second
	// refusedFor is how long a notice stays after the firewall has refused the last datagram.
	refusedFor = 10 * time.Second
	// natFor is how long a notice stays after the last sign of a NAT.
	natFor = time.Minute
)

// watch notices what keeps an open software HCA from reaching its peers. It logs each
// condition when it begins. The messages are constant: addresses may be forged, and the log
// limits each message, not its attributes. Anyone can forge the evidence of a duplicate address
// or of a NAT, so each of these is logged at most once per complainEvery.
type watch struct {
	log           *slog.Logger
	engine        *engine // that traffic and was describe
	traffic       traffic
	was           symptoms
	duplicates    duplicates
	duplicate     string        // what was logged last
	duplicateAt   time.Time     // when that was logged
	nat           [2]netip.Addr // the addresses that were logged last
	natAt         time.Time     // when they were logged
	sendBufLogged bool          // a small send buffer was logged
}

// look returns the notices about the instance that was opened last, which is on a netdev.
func (w *watch) look(now time.Time, e *engine, netdev string) string {
	if w.engine != e {
		w.engine, w.traffic, w.was = e, traffic{}, symptoms{}
		w.duplicates.open(netdev)
	}
	port, err := e.QueryPort(1)
	if err != nil {
		return "" // it is closed, or has failed
	}
	var out []string
	is := w.traffic.look(now, e.Counters())
	if seen, sender, ok := e.NATSuspect(); ok && is.nat {
		out = append(out, w.suspectNAT(now, seen, sender))
	}
	if size, asked, err := e.transport.SendBuf(); err == nil && size < asked {
		if !w.sendBufLogged {
			w.sendBufLogged = true
			w.log.Warn("the send buffer is small: if frames to peers that do not answer fill it, frames to all other peers are lost; raise the sysctl net.core.wmem_max, or grant CAP_NET_ADMIN in the initial user namespace", "bytes", size, "needed", asked)
		}
		out = append(out, fmt.Sprintf("the send buffer has only %d bytes: if frames to peers that do not answer fill it, frames to all other peers are lost; raise the sysctl net.core.wmem_max to %d", size, asked))
	}
	var addrs []netip.Addr
	for _, g := range port.GIDs {
		addrs = append(addrs, g.GID.Addr().Unmap())
	}
	text := w.duplicates.look(now, addrs)
	if text != "" {
		out = append(out, text+"; give each host its own")
	}
	if text != "" && text != w.duplicate && now.Sub(w.duplicateAt) >= complainEvery {
		w.duplicate, w.duplicateAt = text, now
		w.log.Warn("another host has the same underlay address; give each host its own", "what", text)
	}
	if text == "" {
		w.duplicate = ""
	}
	const silent = "no packet from any peer yet: this is the only host, or the others have a GID of the other IP family, or a network without multicast lies between (name the hosts with --peer), or a firewall drops UDP port 4791"
	const refused = "a firewall of this host refuses datagrams to UDP port 4791; let them pass"
	if is.silent {
		out = append(out, silent)
	}
	if is.refused {
		out = append(out, refused)
	}
	if is.silent && !w.was.silent {
		w.log.Warn(silent)
	}
	if is.refused && !w.was.refused {
		w.log.Warn(refused)
	}
	w.was = is
	return strings.Join(out, "; ")
}

// suspectNAT returns the notice of a NAT, and logs it.
func (w *watch) suspectNAT(now time.Time, seen, sender netip.Addr) string {
	if pair := [2]netip.Addr{seen, sender}; pair != w.nat && now.Sub(w.natAt) >= complainEvery {
		w.nat, w.natAt = pair, now
		w.log.Warn("dropping datagrams whose ICRC matches another source address: a NAT has translated it, or they are forged; RoCEv2 does not work through NAT", "from", seen.String(), "icrc_of", sender.String())
	}
	return fmt.Sprintf("datagrams from %s are dropped: their ICRC matches source address %s, so a NAT has translated it, or they are forged; RoCEv2 does not work through NAT", seen, sender)
}

// symptoms are what the counters of a device show.
type symptoms struct {
	silent  bool // it sends, and has never received anything
	refused bool // a firewall of this host refuses what it sends
	nat     bool // a NAT seems to translate what it receives
}

// traffic derives symptoms from the counters of one instance of a device.
type traffic struct {
	began     time.Time // first look at which it had sent, zero: there was none
	refused   uint64    // datagrams, at the last look
	refusedAt time.Time // when that number last grew
	nat       uint64    // signs of a NAT, at the last look
	natAt     time.Time // when that number last grew
}

// Names of counters of the software HCA.
const (
	counterSent    = "tx_packets"
	counterHeard   = "rx_packets"
	counterRefused = "wire_tx_drop_forbidden"
	counterNAT     = "nat_suspected"
)

func (t *traffic) look(now time.Time, counters []hca.Counter) symptoms {
	count := map[string]uint64{}
	for _, c := range counters {
		count[c.Name] = c.Value
	}
	if t.began.IsZero() && count[counterSent]+count[counterRefused] > 0 {
		t.began = now
	}
	if n := count[counterRefused]; n > t.refused {
		t.refused, t.refusedAt = n, now
	}
	if n := count[counterNAT]; n > t.nat {
		t.nat, t.natAt = n, now
	}
	return symptoms{
		silent:  count[counterHeard] == 0 && !t.began.IsZero() && now.Sub(t.began) >= silentAfter,
		refused: !t.refusedAt.IsZero() && now.Sub(t.refusedAt) < refusedFor,
		nat:     !t.natAt.IsZero() && now.Sub(t.natAt) < natFor,
	}
}
