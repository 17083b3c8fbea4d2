package main

import (
	"bytes"
	"encoding/binary"
)

// numberLen is the length of a message's number, and the minimum size of a message.
const numberLen = 8

// filler is the value of all bytes after the number.
const filler = 0xa5

func encode(number uint64, size int) []byte {
	m := bytes.Repeat([]byte{filler}, size)
	binary.BigEndian.PutUint64(m, number)
	return m
}

// decode returns false for a damaged message, or for anything else.
func decode(m []byte) (number uint64, ok bool) {
	if len(m) < numberLen || bytes.Count(m[numberLen:], []byte{filler}) != len(m)-numberLen {
		return 0, false
	}
	return binary.BigEndian.Uint64(m), true
}

// Report is the result of a receiver.
type Report struct {
	Distinct  int `json:"distinct"`  // distinct numbers received
	Again     int `json:"again"`     // messages whose number had been received before
	Reordered int `json:"reordered"` // messages received after one with a higher number
	Damaged   int `json:"damaged"`   // datagrams that are not valid messages
}

// tally counts messages. Its zero value is ready for use.
type tally struct {
	report  Report
	seen    map[uint64]bool
	highest uint64
}

func (t *tally) add(m []byte) {
	n, ok := decode(m)
	switch {
	case !ok:
		t.report.Damaged++
		return
	case t.seen[n]:
		t.report.Again++
		return
	case n < t.highest:
		t.report.Reordered++
	}
	if t.seen == nil {
		t.seen = map[uint64]bool{}
	}
	t.seen[n] = true
	t.highest = max(t.highest, n)
	t.report.Distinct++
}
