package sa

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/qprecovery/transcript"
)

// TestTranscripts plays testdata/*.txt (see package transcript). An input is
//
//	port STATE [lid N] [sm N] [sl N] [timeout N] [gid HOST] [pkeys N,N]    other values are those of the last one
//	down | reregister | smchange | lidchange | kernel [group]...
//	join OWNER GROUP [send-only] | leave OWNER GROUP
//	want HOST [class N] [sl N] | refresh HOST [class N] [sl N]
//	failed TRANSACTION         its Send failed
//	advance DURATION
//	repeat N : INPUT ; INPUT   without outputs, but for the number of Sets
//	stats | groups | paths | members
//
// A group is all or gN, a host hN, with a port that has the LID 100+N unless N is above 400; .PKEY selects a partition
// other than 0xffff. The SA answers each MAD at once, until told otherwise:
//
//	sa silent | sa answers     MADs to it are lost, or not
//	sa lose N                  the next N MADs to it are lost
//	sa hold                    it answers, but the answers are kept
//	deliver [from N] [qpn N] [upper N] [method N]    the oldest kept answer, after changes
//	sa refuse STATUS N         it refuses the next N requests
//	sa forget                  it loses all members
//	sa lid N | sa capable|incapable | sa mlid GROUP N | sa qkey GROUP N | sa remove GROUP | sa move HOST LID
//	sa break OFFSET VALUE      one byte of each answer's record
func TestTranscripts(t *testing.T) {
	transcript.Each(t, func(t *testing.T, script string) string {
		p := newPlayer(t)
		return transcript.Play(script, func(line string) []string {
			var sets int
			if transcript.Repeat(t, line, func() {}, func(in string) {
				for _, o := range p.line(strings.Fields(in)) {
					sets += strings.Count(o, " Set ")
				}
			}) {
				return []string{fmt.Sprintf("%d Sets", sets)}
			}
			return p.line(strings.Fields(line))
		})
	})
}

// player plays one transcript.
type player struct {
	*bench
	subnet *subnet
	view   Port
	mode   string // of the SA
	lose   int    // MADs
	held   [][]byte
	tids   []uint64 // by their numbers in the transcript, less 1
}

func newPlayer(t *testing.T) *player {
	p := &player{bench: newBench(t, 1), subnet: newSubnet(), view: activePort, mode: "answers"}
	for n := range 400 {
		p.subnet.hosts[hostOf(n)] = uint16(100 + n)
	}
	return p
}

// line plays one input.
func (p *player) line(w []string) []string {
	p.tb.Helper()
	switch w[0] {
	case "sa":
		p.control(w[1:])
		return nil
	case "deliver":
		return p.deliver(w[1:])
	case "advance":
		return p.advance(transcript.Duration(p.tb, w[1]))
	case "stats":
		return p.stats()
	case "groups":
		return p.groups()
	case "paths":
		return p.paths()
	case "members":
		return p.members()
	}
	before := p.client.Stats()
	return append(p.do(p.step(p.event(w))), refused(before, p.client.Stats())...)
}

func (p *player) advance(d time.Duration) (out []string) {
	start := p.now
	for end := start.Add(d); p.now.Before(end); {
		before := p.client.Stats()
		actions := p.next(end)
		for _, o := range append(p.do(actions), refused(before, p.client.Stats())...) {
			out = append(out, fmt.Sprintf("+%v %s", p.now.Sub(start).Round(time.Millisecond), o))
		}
	}
	return out
}

// do describes actions, and those that follow from the answers of the SA.
func (p *player) do(actions []Action) (out []string) {
	var sends []Send
	for _, a := range actions {
		out = append(out, p.action(a))
		if send, ok := a.(Send); ok {
			sends = append(sends, send)
		}
	}
	for _, send := range sends {
		switch {
		case p.lose > 0:
			p.lose--
		case p.mode == "answers" && send.DLID == p.subnet.lid:
			before := p.client.Stats()
			out = append(out, p.do(p.step(answerTo(p.subnet, send)))...)
			out = append(out, refused(before, p.client.Stats())...)
		case p.mode == "hold" && send.DLID == p.subnet.lid:
			p.held = append(p.held, p.subnet.answer(send.MAD))
		}
	}
	return out
}

// refused lists the MADs that were refused, and the busy answers, between two readings of the counters.
func refused(before, after Stats) (out []string) {
	for r := range NumRefusal {
		if n := after.Refused[r] - before.Refused[r]; n > 0 {
			out = append(out, fmt.Sprintf("refused %d %v", n, r))
		}
	}
	return out
}

func (p *player) number(tid uint64) int {
	if !slices.Contains(p.tids, tid) {
		p.tids = append(p.tids, tid)
	}
	return slices.Index(p.tids, tid) + 1
}

func (p *player) action(a Action) string {
	switch a := a.(type) {
	case Send:
		if a.QPN != hca.QPNGSI || a.QKey != 0x80010000 || len(a.MAD) != mad.Len {
			p.tb.Fatalf("Send to QPN %v with Q_Key %v and %d bytes", a.QPN, a.QKey, len(a.MAD))
		}
		return fmt.Sprintf("-> lid %d sl %d #%d: %s", a.DLID, a.SL, p.number(a.TID), p.mad(a.MAD))
	case Joined:
		g := a.Group
		return fmt.Sprintf("joined %d %s: mlid %#x qkey %#x pkey %#x mtu %d rate %v sl %d %+v",
			a.Owner, groupName(a.MGID), g.MLID, uint32(g.QKey), uint16(g.PKey), g.MTU, g.Rate, g.SL, g.Routing)
	case JoinFailed:
		return fmt.Sprintf("join failed %d %s: %v%s", a.Owner, groupName(a.MGID), a.Reason, statusText(a.Status))
	case Left:
		return "left " + groupName(a.MGID)
	case PathFound:
		changed := ""
		if a.Changed {
			changed = ", changed"
		}
		return fmt.Sprintf("path %s: %s%s", keyName(a.Key), pathText(a.Path), changed)
	case PathFailed:
		return fmt.Sprintf("path failed %s: %v%s", keyName(a.Key), a.Reason, statusText(a.Status))
	}
	return fmt.Sprintf("?%T", a)
}

func statusText(s mad.Status) string {
	if s == mad.StatusOK {
		return ""
	}
	return ", " + s.String()
}

func pathText(p Path) string {
	return fmt.Sprintf("dlid %d sl %d mtu %d rate %v hops %d", p.DLID, p.SL, p.MTU, p.Rate, p.Routing.HopLimit)
}

func (p *player) mad(raw []byte) string {
	h, member, path := parse(p.tb, raw)
	text := fmt.Sprintf("%v %v", h.Method, h.Attribute)
	switch h.Attribute {
	case mad.AttrMCMemberRecord:
		text += fmt.Sprintf(" %s state %d mask %#x", groupName(member.MGID), member.JoinState, uint64(h.Mask))
		if h.Mask == mad.MaskJoin {
			text += fmt.Sprintf(" qkey %#x mtu %d rate %d", uint32(member.QKey), member.MTU.Value, member.Rate.Value)
		}
		if h.Method == mad.MethodSet && member.PKey != 0xffff {
			text += fmt.Sprintf(" pkey %#x", uint16(member.PKey))
		}
	case mad.AttrClassPortInfo:
	case mad.AttrPathRecord:
		key := PathKey{path.DGID, path.PKey, path.Routing.Class, path.SL, h.Mask&mad.PathSL != 0}
		text += fmt.Sprintf(" %s mask %#x", keyName(key), uint64(h.Mask))
	}
	return text
}

func groupName(g hca.GID) string {
	name := fmt.Sprintf("g%d", binary.BigEndian.Uint32(g[12:]))
	switch normal, ok := normalMGID(g); {
	case !ok:
		return g.String()
	case g == broadcastOf(g):
		name = "all"
	case normal != g:
		name += "(limited)"
	}
	if pkey := pkeyOf(g); pkey != hca.PKeyDefault {
		name += fmt.Sprintf(".%#x", uint16(pkey))
	}
	return name
}

func keyName(k PathKey) string {
	name := fmt.Sprintf("h%d", binary.BigEndian.Uint32(k.DGID[12:]))
	if k.PKey != hca.PKeyDefault {
		name += fmt.Sprintf(".%#x", uint16(k.PKey))
	}
	if k.Class != 0 {
		name += fmt.Sprintf(" class %d", k.Class)
	}
	if k.WithSL {
		name += fmt.Sprintf(" sl %d", k.SL)
	}
	return name
}

func (p *player) stats() (out []string) {
	for _, c := range p.client.Stats().Counters() {
		if c.Value > 0 {
			out = append(out, fmt.Sprintf("%s %d", c.Name, c.Value))
		}
	}
	return out
}

func (p *player) groups() (out []string) {
	for _, g := range p.client.Groups() {
		text := fmt.Sprintf("%s %s owners %v state %d", groupName(g.MGID), g.State, g.Owners, g.JoinState)
		if g.Reason != ReasonNone {
			text += fmt.Sprintf(" because %v%s", g.Reason, statusText(g.Status))
		}
		if g.State == "joined" {
			text += fmt.Sprintf(" mlid %#x", g.Group.MLID)
		}
		out = append(out, text)
	}
	return out
}

func (p *player) paths() (out []string) {
	for _, i := range p.client.Paths() {
		age := p.now.Sub(i.Got).Round(time.Second)
		out = append(out, fmt.Sprintf("%s: %s, age %v, stale %v", keyName(i.Key), pathText(i.Path), age, i.Stale))
	}
	slices.Sort(out)
	return out
}

// members lists what the subnet manager has stored for the port.
func (p *player) members() (out []string) {
	for g, state := range p.subnet.members {
		out = append(out, fmt.Sprintf("%s state %d", groupName(g), state))
	}
	slices.Sort(out)
	return out
}

// control changes the SA.
func (p *player) control(w []string) {
	s := p.subnet
	switch w[0] {
	case "silent", "answers", "hold":
		p.mode = w[0]
	case "lose":
		p.lose = transcript.Number(p.tb, w[1])
	case "refuse":
		s.refuse, s.refuses = mad.Status(transcript.Number(p.tb, w[1])), transcript.Number(p.tb, w[2])
	case "forget":
		s.restart()
	case "lid":
		s.lid = uint16(transcript.Number(p.tb, w[1]))
	case "capable", "incapable":
		s.capable = w[0] == "capable"
	case "mlid", "qkey":
		rec := s.groups[p.group(w[1])]
		if n := transcript.Number(p.tb, w[2]); w[0] == "mlid" {
			rec.MLID = uint16(n)
		} else {
			rec.QKey = hca.QKey(n)
		}
		s.groups[rec.MGID] = rec
	case "remove":
		delete(s.groups, p.group(w[1]))
	case "move":
		s.hosts[p.key(w[1:2]).DGID] = uint16(transcript.Number(p.tb, w[2]))
	case "break":
		at, to := transcript.Number(p.tb, w[1]), transcript.Number(p.tb, w[2])
		s.broken = func(data []byte) { data[at] = byte(to) }
	case "mend":
		s.broken = nil
	default:
		p.tb.Fatalf("unknown input %q", w)
	}
}

func (p *player) deliver(w []string) []string {
	if len(p.held) == 0 {
		p.tb.Fatal("no answer is kept")
	}
	ev := Received{MAD: slices.Clone(p.held[0]), SLID: p.subnet.lid, SrcQPN: hca.QPNGSI}
	keep := false
	for ; len(w) > 0; w = w[2:] {
		n := transcript.Number(p.tb, w[1])
		switch w[0] {
		case "from":
			ev.SLID = uint16(n)
		case "qpn":
			ev.SrcQPN = hca.QPN(n)
		case "upper":
			binary.BigEndian.PutUint16(ev.MAD[8:], uint16(n))
		case "method":
			ev.MAD[3] = byte(n)
		case "byte":
			at, _ := strconv.Atoi(w[1])
			ev.MAD[at]++
		case "keep":
			keep = n != 0
		}
	}
	if !keep {
		p.held = p.held[1:]
	}
	before := p.client.Stats()
	return append(p.do(p.step(ev)), refused(before, p.client.Stats())...)
}

// event parses an input that is an event.
func (p *player) event(w []string) Event {
	p.tb.Helper()
	switch w[0] {
	case "port":
		return p.port(w[1:])
	case "down":
		return PortDown{}
	case "reregister":
		return Reregister{}
	case "smchange":
		return SMChange{}
	case "lidchange":
		return LIDChange{}
	case "kernel":
		var ev KernelGroups
		for _, name := range w[1:] {
			ev.MGIDs = append(ev.MGIDs, p.group(name))
		}
		return ev
	case "join":
		return Join{Owner: p.owner(w[1]), MGID: p.group(w[2]), SendOnly: len(w) > 3 && w[3] == "send-only"}
	case "leave":
		return Leave{Owner: p.owner(w[1]), MGID: p.group(w[2])}
	case "want":
		return WantPath{p.key(w[1:])}
	case "refresh":
		return RefreshPath{p.key(w[1:])}
	case "failed":
		return SendFailed{p.tids[transcript.Number(p.tb, w[1])-1]}
	}
	p.tb.Fatalf("unknown input %q", w)
	return nil
}

func (p *player) owner(s string) Owner { return Owner(transcript.Number(p.tb, s)) }

func (p *player) port(w []string) Event {
	states := map[string]hca.PortState{
		"down": hca.PortDown, "init": hca.PortInit, "armed": hca.PortArmed, "active": hca.PortActive,
	}
	p.view.State = states[w[0]]
	for w = w[1:]; len(w) > 0; w = w[2:] {
		if w[0] == "pkeys" {
			p.view.PKeys = nil
			for k := range strings.SplitSeq(w[1], ",") {
				p.view.PKeys = append(p.view.PKeys, hca.PKey(transcript.Number(p.tb, k)))
			}
			continue
		}
		if w[0] == "gid" {
			p.view.GID = p.key(w[1:2]).DGID
			continue
		}
		n := transcript.Number(p.tb, w[1])
		switch w[0] {
		case "lid":
			p.view.LID = uint16(n)
		case "sm":
			p.view.SMLID = uint16(n)
		case "sl":
			p.view.SMSL = uint8(n)
		case "timeout":
			p.view.SubnetTimeout = mad.TimeCode(n)
		}
	}
	return p.view
}

// partition cuts ".PKEY" from a name.
func (p *player) partition(s string) (string, hca.PKey) {
	name, pkey, ok := strings.Cut(s, ".")
	if !ok {
		return name, hca.PKeyDefault
	}
	return name, hca.PKey(transcript.Number(p.tb, pkey))
}

func (p *player) group(s string) hca.GID {
	name, pkey := p.partition(s)
	switch name {
	case "bad":
		return hostOf(1)
	case "all":
		return allOf(pkey)
	}
	return groupOf(transcript.Number(p.tb, name[1:]), pkey)
}

func (p *player) key(w []string) PathKey {
	name, pkey := p.partition(w[0])
	k := PathKey{DGID: hostOf(transcript.Number(p.tb, name[1:])), PKey: pkey}
	for w = w[1:]; len(w) > 0; w = w[2:] {
		if n := uint8(transcript.Number(p.tb, w[1])); w[0] == "sl" {
			k.SL, k.WithSL = n, true
		} else {
			k.Class = n
		}
	}
	return k
}
