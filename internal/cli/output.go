package cli

// outputFlags say how a command answers.
type outputFlags struct {
	Format string `default:"text" enum:"text,json" help:"text for people, or json."`
	JSON   bool   `name:"json" help:"The same as --format json."`
}

func (o *outputFlags) json() bool { return o.JSON || o.Format == "json" }
