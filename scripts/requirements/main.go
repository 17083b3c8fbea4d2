package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	write := flag.Bool("w", false, "write "+pagePath+" instead of printing it")
	flag.Parse()
	if err := run(os.Stdout, *write); err != nil {
		fmt.Fprintln(os.Stderr, "requirements:", err)
		os.Exit(1)
	}
}

// run makes the page from the tree in the working directory.
func run(out io.Writer, write bool) error {
	found, err := scan(os.DirFS("."))
	if err != nil {
		return err
	}
	if write {
		return os.WriteFile(pagePath, []byte(page(found)), 0o644)
	}
	_, err = io.WriteString(out, page(found))
	return err
}
