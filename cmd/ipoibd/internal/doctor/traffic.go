package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
)

// traffic is what a device has counted.
type traffic struct {
	device     *report.Device
	earlier    *report.Device // the same opening, the time watched before; nil: not known
	watched    time.Duration
	interfaces []*report.Interface
}

// blames returns the evidence that a counter explains why peers are not reached: it grows now, or
// it has grown and this device has no peer at all. Otherwise it returns "". A healthy device also
// counts such datagrams now and then, for example when a peer restarts.
func (t *traffic) blames(counters ...string) string {
	for _, name := range counters {
		total, grown := t.device.Counters[name].Value, t.grown(name)
		lonely := !hasPeers(t)
		if grown > 0 || total > 0 && lonely {
			text := fmt.Sprintf("%s is %d, %d more than %s before", name, total, grown, t.watched)
			if lonely {
				text += "; no peer is known"
			}
			return text
		}
	}
	return ""
}

// grown returns by how much a counter has grown while it was watched.
func (t *traffic) grown(counter string) uint64 {
	if t.earlier == nil {
		return 0
	}
	before, now := t.earlier.Counters[counter].Value, t.device.Counters[counter].Value
	return now - min(before, now)
}

// traffics calls each with the traffic of the open devices.
func (f *Facts) traffics(each func(t *traffic) *Finding) (out []Finding) {
	for _, t := range f.reported() {
		if t.device.State != report.DeviceOpen {
			continue
		}
		if x := each(&t); x != nil {
			x.device, x.Subject = t.device.Name, t.device.Name
			out = append(out, *x)
		}
	}
	return out
}

func duplicateAddress(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		evidence := notice(t.device.Notices, report.NoticeDuplicateAddress)
		if evidence == "" {
			evidence = t.blames("rx_own_source")
		}
		if evidence == "" {
			return nil
		}
		return &Finding{What: "another host has the underlay address of this host, or forges it", Evidence: evidence, Advice: "give each host an address of its own", Command: report.Command("ip address show dev %s", t.device.Underlay)}
	})
}

func familyMismatch(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		for _, x := range t.interfaces {
			if x.QP == nil || len(t.device.Peers) == 0 {
				continue
			}
			gid := x.QP.GID.Addr().Unmap()
			same := slices.ContainsFunc(t.device.Peers, func(p netip.Addr) bool { return p.Unmap().Is4() == gid.Is4() })
			if !same {
				family := map[bool]string{true: "IPv4", false: "IPv6"}
				return &Finding{
					What: "the peers and this host have addresses of different IP families", Evidence: fmt.Sprintf("the GID of %s is %s, %s; all peers are %s, such as %s", x.Name, gid, family[gid.Is4()], family[!gid.Is4()], t.device.Peers[0]),
					Advice: "name the peers by addresses of this host's family, or give the underlay an address of theirs", Command: report.Command("ip address add ADDRESS/PREFIX dev %s", t.device.Underlay),
				}
			}
		}
		return nil
	})
}

func pkeyMismatch(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		evidence := t.blames("rx_drop_pkey", "rx_other_pkey")
		if evidence == "" || hasPeers(t) {
			return nil
		}
		var own []string
		for _, k := range t.pkeys() {
			own = append(own, fmt.Sprintf("0x%04x", uint16(k)))
		}
		return &Finding{
			What: "other hosts use another P_Key, and none uses the one of this host", Evidence: fmt.Sprintf("%s; this host has %s", evidence, strings.Join(own, ", ")),
			Advice: "give all hosts of a network the same P_Key", Command: "ipoibd run --pkey P_KEY",
		}
	})
}

// hasPeers reports whether an interface of the device has peers. If so, packets of other partitions
// are no problem.
func hasPeers(t *traffic) bool {
	return slices.ContainsFunc(t.interfaces, func(x *report.Interface) bool { return len(x.Peers) > 0 })
}

func qkeyMismatch(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		if evidence := t.blames("rx_drop_qkey"); evidence != "" {
			return &Finding{What: "other hosts use another Q_Key", Evidence: evidence, Advice: "use ipoibd, or another implementation with the Q_Key 0x0b1b, on all hosts", Command: f.asks("status", "-v")}
		}
		return nil
	})
}

func unknownPeer(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		if evidence := t.blames("rx_drop_unknown_peer"); evidence != "" {
			return &Finding{
				What: "--known-peers-only drops packets from a host that is not among the peers", Evidence: evidence,
				Advice: "add it to the peers; a capture on the underlay shows its address", Command: report.Command("tcpdump -ni %s udp port 4791", t.device.Underlay),
			}
		}
		return nil
	})
}

func oneSidedPeer(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		if t.device.Replicates {
			return nil
		}
		if evidence := t.blames("rx_drop_no_qp", "rx_drop_group_qpn"); evidence != "" {
			return &Finding{
				What: "another host seems to name this one with --peer, but this one runs without --peer", Evidence: evidence,
				Advice: "name that host here as well, or remove --peer there; a capture on the underlay shows its address (just after a restart or a recovery, datagrams for the earlier queue pair are counted too: run doctor again)", Command: "ipoibd run --peer ADDRESS",
			}
		}
		return nil
	})
}

func peerRefuses(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		const sent, unrouted = "wire_tx_packets", "wire_tx_drop_no_route"
		evidence := t.blames("wire_icmp_errors")
		// An underlay that was down for a moment had no routes either. Datagrams have left since.
		if mostly := t.device.Counters[unrouted].Value > t.device.Counters[sent].Value; evidence == "" && (mostly || t.grown(unrouted) > 0) {
			evidence = t.blames(unrouted)
		}
		if evidence == "" {
			return nil
		}
		x := &Finding{What: "a peer's host reports that no daemon runs there, or a router, a firewall or this host's routes prevent packets from reaching it", Evidence: evidence, Advice: "start ipoibd there, or correct --peer, the firewall or the route"}
		if len(t.device.Peers) > 0 {
			x.Evidence += fmt.Sprintf("; the peers are %s", list(t.device.Peers))
			x.Command = report.Command("ip route get %s", t.device.Peers[0])
		}
		return x
	})
}

// maxListed bounds how many peers a finding names.
const maxListed = 8

func list(addrs []netip.Addr) string {
	var names []string
	for _, a := range addrs[:min(len(addrs), maxListed)] {
		names = append(names, a.String())
	}
	if more := len(addrs) - maxListed; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func noPeerAnswers(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		text := notice(t.device.Notices, report.NoticeSilent)
		if text == "" || len(t.device.Peers) == 0 {
			return nil
		}
		return &Finding{
			What: "none of the peers has answered since the device was opened", Evidence: fmt.Sprintf("no packet has come from %s", list(t.device.Peers)),
			Advice: "check that ipoibd runs there, with --peer and the address of this host, and that every firewall on the path allows UDP port 4791", Command: report.Command("ping -c 3 %s", t.device.Peers[0]),
		}
	})
}

func alone(f *Facts) []Finding {
	return f.traffics(func(t *traffic) *Finding {
		text := notice(t.device.Notices, report.NoticeSilent)
		if text == "" || len(t.device.Peers) > 0 {
			return nil
		}
		return &Finding{What: "the daemon has not heard from any other host", Evidence: text, Advice: "if there should be other hosts, name them", Command: "ipoibd run --peer ADDRESS"}
	})
}

// maxDrops bounds how many counters the evidence of one finding names.
const maxDrops = 8

// drops finds every drop counter that grew while the daemon was watched.
func drops(f *Facts) (out []Finding) {
	add := func(device, subject string, lost []string) {
		if len(lost) == 0 {
			return
		}
		if more := len(lost) - maxDrops; more > 0 {
			lost = append(lost[:maxDrops:maxDrops], fmt.Sprintf("%d more counters", more))
		}
		out = append(out, Finding{
			device: device, Subject: subject, What: fmt.Sprintf("frames were dropped within %s", f.Watched), Evidence: strings.Join(lost, "\n"),
			Advice: "look up the counters in docs/counters.md if these frames should have arrived", Command: f.asks("status", "-v"),
		})
	}
	for _, t := range f.reported() {
		if t.earlier != nil {
			add(t.device.Name, t.device.Name, grownDrops(t.earlier.Counters, t.device.Counters, docs.DeviceCounter))
		}
		for _, x := range t.interfaces {
			if e := f.before(x); e != nil {
				lost := append(grownDrops(e.Counters, x.Counters, docs.InterfaceCounter), grownDrops(e.Kernel, x.Kernel, docs.InterfaceCounter)...)
				add(t.device.Name, x.Name, lost)
			}
		}
	}
	return out
}

// grownDrops describes the counters of lost frames that grew, those that grew most first.
func grownDrops(earlier, later report.Counters, meaning func(string) string) (lost []string) {
	grown := map[string]uint64{}
	for name, n := range later {
		drop := strings.Contains(name, "_drop") || strings.HasPrefix(name, "kernel_") && strings.HasSuffix(name, "_errors")
		if was := earlier[name].Value; drop && n.Value > was {
			grown[name] = n.Value - was
		}
	}
	most := func(a, b string) int { return cmp.Or(cmp.Compare(grown[b], grown[a]), cmp.Compare(a, b)) }
	for _, name := range slices.SortedFunc(maps.Keys(grown), most) {
		lost = append(lost, strings.TrimSuffix(fmt.Sprintf("%s grew by %d to %d: %s", name, grown[name], later[name].Value, meaning(name)), ": "))
	}
	return lost
}
