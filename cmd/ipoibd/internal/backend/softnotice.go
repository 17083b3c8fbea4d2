package backend

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

const (
	// lookEvery is the interval at which the counters and reports of a software HCA are read: half of
	// refusedFor.
	lookEvery = 5 * time.Second
	// lookFirst is how long the first look at an open device may wait.
	lookFirst = time.Second
	// silentAfter is how long a device sends without an answer until that is reported. Each
	// host sends to the groups of ib0 when it comes up.
	silentAfter = 30 * time.Second
	// complainEvery is the least time between two log messages about the addresses
	// of one name, about duplicate addresses, or about a NAT.
	complainEvery = time.Minute
	// refusedFor is how long a notice stays after the firewall has refused the last datagram.
	refusedFor = 10 * time.Second
	// natFor is how long a notice stays after the last sign of a NAT.
	natFor = time.Minute
)

// watch notices what keeps an open software HCA from reaching its peers. It logs each
// condition when it begins or changes. The messages are constant: addresses may be forged, and
// the log limits each message, not its attributes. Anyone can forge the evidence of a duplicate
// address or of a NAT, so each of these is logged at most once per complainEvery.
type watch struct {
	log        *slog.Logger
	engine     *engine // that traffic describes
	traffic    traffic
	duplicates duplicates
	said       complaints // by message
}

// look returns the notices about the instance that was opened last, which is on a netdev.
func (w *watch) look(now time.Time, e *engine, netdev string) (out report.Notices) {
	if w.engine != e {
		w.engine, w.traffic = e, traffic{}
		w.duplicates.open(netdev)
	}
	port, err := e.QueryPort(1)
	if err != nil {
		return nil // it is closed, or has failed
	}
	is := w.traffic.look(now, e.Counters())
	seen, sender, nat := e.NATSuspect()
	out.Add(report.NoticeNAT, w.suspectNAT(now, nat && is.nat, seen, sender))
	size, asked, err := e.lanes[0].SendBuf()
	out.Add(report.NoticeSendBuffer, w.note(now, err == nil && size < asked, 0,
		fmt.Sprintf("the send buffer has only %d bytes: if frames to peers that do not answer fill it, frames to all other peers are lost; raise the sysctl net.core.wmem_max to %d, and restart the daemon", size, asked),
		"the send buffer is small: if frames to peers that do not answer fill it, frames to all other peers are lost; raise the sysctl net.core.wmem_max, or grant CAP_NET_ADMIN in the initial user namespace, and restart the daemon", "bytes", size, "needed", asked))
	var trains error
	for _, lane := range e.lanes {
		if trains = lane.TrainsRefused(); trains != nil {
			break
		}
	}
	out.Add(report.NoticeNoSegmentation, w.refusedTrains(now, trains))
	fewer := e.lanes[0].LanesRefused()
	out.Add(report.NoticeOneSocket, w.note(now, fewer != nil, 0,
		fmt.Sprintf("the software HCA has only one socket for all lanes: %v", fewer),
		"the software HCA has only one socket for all lanes, so they do not receive in parallel", "err", fewer))
	var addrs []netip.Addr
	for _, g := range port.GIDs {
		addrs = append(addrs, g.GID.Addr().Unmap())
	}
	what := w.duplicates.look(now, addrs)
	out.Add(report.NoticeDuplicateAddress, w.note(now, what != "", complainEvery, what+"; give each host its own",
		"another host has the same underlay address; give each host its own", "what", what))
	const silent = "no packet from any peer yet: this is the only host, or the others have a GID of the other IP family, or a network without multicast lies between (name the hosts with --peer), or a firewall drops UDP port 4791"
	const refused = "a firewall of this host refuses datagrams to UDP port 4791; let them pass"
	out.Add(report.NoticeSilent, w.note(now, is.silent, 0, silent, silent))
	out.Add(report.NoticeFirewall, w.note(now, is.refused, 0, refused, refused))
	return out
}

// refusedTrains returns the notice that trains are refused, or "" if they are not.
func (w *watch) refusedTrains(now time.Time, why error) string {
	return w.note(now, why != nil, complainEvery,
		fmt.Sprintf("the kernel or the NIC does not support UDP segmentation (UDP_SEGMENT: %v), so each datagram is sent on its own; no frames are lost, but bulk traffic is slower", why),
		"the kernel or the NIC does not support UDP segmentation (UDP_SEGMENT), so each datagram is sent on its own; no frames are lost, but bulk traffic is slower; check the checksum offload of the underlay with 'ethtool -k' (tx-checksum-ip-generic)", "err", why)
}

// suspectNAT returns the notice of a NAT if there are signs of one, else "".
func (w *watch) suspectNAT(now time.Time, is bool, seen, sender netip.Addr) string {
	return w.note(now, is, complainEvery,
		fmt.Sprintf("datagrams from %s are dropped: their ICRC matches source address %s, so a NAT has translated it, or they are forged; RoCEv2 does not work through NAT", seen, sender),
		"dropping datagrams whose ICRC matches another source address: a NAT has translated it, or they are forged; RoCEv2 does not work through NAT", "from", seen.String(), "icrc_of", sender.String())
}

// note returns a notice if its condition holds, else "". It logs a message when the condition
// begins or the notice changes. Two messages are at least the time every apart.
func (w *watch) note(now time.Time, is bool, every time.Duration, notice, message string, args ...any) string {
	if !is {
		notice = ""
	}
	if w.said.due(now, message, notice, every) && is {
		w.log.Warn(message, args...)
	}
	return notice
}

// complaints holds the last log message about each subject. Other hosts may be able to change
// its text at will, by the addresses in it.
type complaints map[string]complaint

type complaint struct {
	text string
	at   time.Time
}

// due reports whether a text about a subject is to be logged: it differs from the last one,
// and that one is old enough.
func (c complaints) due(now time.Time, subject, text string, every time.Duration) bool {
	last := c[subject]
	if text == last.text || now.Sub(last.at) < every {
		return false
	}
	c[subject] = complaint{text, now}
	return true
}

// symptoms are what the counters of a device show.
type symptoms struct {
	silent  bool // it sends, and has never received anything
	refused bool // a firewall of this host rejects its packets
	nat     bool // a NAT seems to translate the packets that it receives
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
