package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

// The receiver of a stream reports what the sender sent.
func TestPourAndDrain(t *testing.T) {
	address := freeAddress(t)
	out, done := &listening{begun: make(chan struct{})}, make(chan error)
	go func() { done <- drain(address, out) }()
	<-out.begun
	var sent bytes.Buffer
	if err := pour(address, "1000000", &sent); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	received := out.report.String()
	var p Poured
	if err := json.Unmarshal(sent.Bytes(), &p); err != nil || p.Bytes != 1000000 || received != sent.String() {
		t.Errorf("sent %q, received %q, %v", &sent, received, err)
	}
}
