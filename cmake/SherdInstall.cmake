install(TARGETS sherd)
